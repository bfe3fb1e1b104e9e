#include "context_store/records/clean_up.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace withy::context_store {
namespace {

constexpr CleanUp::Pauses kShort{absl::Milliseconds(1), absl::Milliseconds(4)};

TEST(CleanUp, WorkIsTriedUntilItSucceedsAndAgainWhenMoreIsLeft) {
  std::atomic<int> tries{0};
  absl::Notification first, second;
  CleanUp clean_up(
      [&] {
        const int now = ++tries;
        if (now < 5) return absl::ResourceExhaustedError("disk full");
        if (now == 5) first.Notify();
        if (now == 6) second.Notify();
        return absl::OkStatus();
      },
      kShort);
  clean_up.Begin();
  first.WaitForNotification();
  EXPECT_EQ(tries, 5) << "nothing was left";
  clean_up.Begin();
  second.WaitForNotification();
}

TEST(CleanUp, TheEndWaitsForNoPause) {
  std::atomic<int> tries{0};
  const absl::Time begin = absl::Now();
  {
    CleanUp clean_up([&] { return ++tries, absl::OkStatus(); },
                     {absl::Minutes(5), absl::Minutes(5)});
    clean_up.Begin();
  }
  EXPECT_LT(absl::Now() - begin, absl::Minutes(1));
  EXPECT_EQ(tries, 0);
}

}  // namespace
}  // namespace withy::context_store
