#include "policy/step/start_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;

Turn Arriving(int64_t arrived, int64_t deadline = 0, int32_t priority = 0) {
  return {.deadline_ns = deadline,
          .priority = priority,
          .arrived_ns = arrived,
          .id = static_cast<uint64_t>(arrived)};
}

TEST(ChooseStartsTest, OneCallAContextAndOthersPass) {
  const std::vector<WaitingCall> waiting = {{Arriving(1), "a"}, {Arriving(2), "a"},
                                            {Arriving(3), "b"}, {Arriving(4), ""},
                                            {Arriving(5), ""},  {Arriving(6), "c"}};
  const std::string_view busy[] = {"c"};
  EXPECT_THAT(ChooseStarts(waiting, busy, 10, 10), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(ChooseStarts(waiting, busy, 2, 10), ElementsAre(0, 2));
  EXPECT_THAT(ChooseStarts(waiting, {}, 0, 10), ElementsAre());
}

TEST(ChooseStartsTest, NobodyStarvesBehindAStreamOfUrgentCalls) {
  // One patient call; an urgent one arrives for each that starts.
  std::vector<WaitingCall> waiting = {{Arriving(0), ""}};
  int64_t now = 0;
  for (int step = 0; step < 1000; ++step) {
    now += kNanosPerSecond / 10;
    waiting.push_back({Arriving(now, now + 1, 10), ""});
    const size_t started = ChooseStarts(waiting, {}, 1, now).front();
    if (started == 0) {
      EXPECT_LE(now, kPatienceNs + kNanosPerSecond);
      return;
    }
    waiting.erase(waiting.begin() + static_cast<int64_t>(started));
  }
  FAIL() << "it never started";
}

}  // namespace
}  // namespace withy::policy
