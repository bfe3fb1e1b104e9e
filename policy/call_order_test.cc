#include "policy/call_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;

constexpr int64_t kSecond = 1'000'000'000;

CallOrder Order(int64_t arrived, int64_t deadline = 0, int32_t priority = 0) {
  return {.deadline_ns = deadline,
          .priority = priority,
          .arrived_ns = arrived,
          .sequence = static_cast<uint64_t>(arrived)};
}

TEST(ComesBeforeTest, DeadlineThenPriorityThenArrival) {
  EXPECT_TRUE(ComesBefore(Order(5, 100), Order(1), 10));
  EXPECT_TRUE(ComesBefore(Order(5, 100), Order(1, 200), 10));
  EXPECT_TRUE(ComesBefore(Order(5, 0, 3), Order(1), 10));
  EXPECT_FALSE(ComesBefore(Order(5, 200, 3), Order(1, 100), 10));
  EXPECT_TRUE(ComesBefore(Order(1), Order(5), 10));
}

TEST(ComesBeforeTest, LongWaitGoesBeforeUrgency) {
  const int64_t now = 100 * kSecond;
  EXPECT_TRUE(ComesBefore(Order(now - kPromptPatienceNs), Order(now - 1, now + 1, 10), now));
}

TEST(ChooseStartsTest, OneCallAContextAndOthersPass) {
  const std::vector<WaitingCall> waiting = {{Order(1), "a"}, {Order(2), "a"}, {Order(3), "b"},
                                            {Order(4), ""},  {Order(5), ""},  {Order(6), "c"}};
  const std::string_view busy[] = {"c"};
  EXPECT_THAT(ChooseStarts(waiting, busy, 10, 10), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(ChooseStarts(waiting, busy, 2, 10), ElementsAre(0, 2));
  EXPECT_THAT(ChooseStarts(waiting, {}, 0, 10), ElementsAre());
}

TEST(ChooseStartsTest, NobodyStarvesBehindAStreamOfUrgentCalls) {
  // One patient call; an urgent one arrives for each that starts.
  std::vector<WaitingCall> waiting = {{Order(0), ""}};
  int64_t now = 0;
  for (int step = 0; step < 1000; ++step) {
    now += kSecond / 10;
    waiting.push_back({Order(now, now + 1, 10), ""});
    const size_t started = ChooseStarts(waiting, {}, 1, now).front();
    if (started == 0) {
      EXPECT_LE(now, kPromptPatienceNs + kSecond);
      return;
    }
    waiting.erase(waiting.begin() + static_cast<int64_t>(started));
  }
  FAIL() << "it never started";
}

}  // namespace
}  // namespace withy::policy
