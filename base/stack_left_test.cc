#include "base/stack_left.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>

namespace withy {
namespace {

// Recurses until the stack does not allow more; returns the levels. Each level uses `bytes`.
template <size_t bytes>
[[gnu::noinline]] int Recurse(int level) {
  volatile char used[bytes];
  used[0] = static_cast<char>(level);
  if (!StackAllows(bytes)) return level;
  const int levels = Recurse<bytes>(level + 1);
  return levels + used[0] - static_cast<char>(level);
}

TEST(StackLeftTest, RecursionEndsOnAnyThread) {
  int levels = 0;
  for (const size_t bytes : {kSmallStackBytes, size_t{100 << 10}, size_t{1 << 20}}) {
    ASSERT_TRUE(RunOnStack(bytes, [&, bytes] {
      EXPECT_LE(StackLeft(), bytes);
      EXPECT_GE(StackLeft(), bytes / 2);
      const int reached = Recurse<256>(0);
      EXPECT_GT(reached, levels);
      // A sanitizer keeps locals elsewhere.
      if (kFrameScale == 1) {
        EXPECT_LE(static_cast<size_t>(reached) * 256, bytes);
      }
      levels = reached;
    }));
  }
  std::thread([&] { EXPECT_GT(Recurse<256>(0), 0); }).join();
  EXPECT_GT(Recurse<4096>(0), 0);  // the main thread
}

[[gnu::noinline]] size_t StackLeftBelow() {
  volatile char used[8192];
  used[0] = 1;
  return StackLeft() + static_cast<size_t>(used[0]);
}

TEST(StackLeftTest, IsLessInACalledFunction) {
  if (kFrameScale != 1) GTEST_SKIP() << "a sanitizer keeps locals elsewhere";
  const size_t here = StackLeft();
  EXPECT_GT(here, kStackReserveBytes);
  EXPECT_LT(StackLeftBelow(), here - 8000);
}

TEST(StackLeftTest, TheErrorTellsWhatAndTheRemedy) {
  const absl::Status status = StackExhausted("the template");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), testing::HasSubstr("the template is nested too deep"));
  EXPECT_THAT(status.message(), testing::HasSubstr("make it flatter"));
}

}  // namespace
}  // namespace withy
