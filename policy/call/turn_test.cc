#include "policy/call/turn.h"

#include <random>

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

TEST(TurnTest, DeadlineThenPriorityThenArrival) {
  const Turn urgent{.deadline_ns = 5 * kNanosPerSecond, .arrived_ns = 2, .id = 1};
  const Turn later{.deadline_ns = 9 * kNanosPerSecond, .priority = 10, .arrived_ns = 1, .id = 2};
  const Turn important{.priority = 3, .arrived_ns = 3, .id = 3};
  const Turn first{.arrived_ns = 1, .id = 4};
  const Turn second{.arrived_ns = 2, .id = 5};
  EXPECT_TRUE(GoesBefore(urgent, later, 0));
  EXPECT_TRUE(GoesBefore(later, important, 0));
  EXPECT_TRUE(GoesBefore(important, first, 0));
  EXPECT_TRUE(GoesBefore(first, second, 0));
  Turn equal = urgent;
  equal.priority = 1;
  EXPECT_TRUE(GoesBefore(equal, urgent, 0));
  // Nobody waits for ever behind calls with deadlines.
  EXPECT_TRUE(GoesBefore(first, urgent, 1 + kPatienceNs));
  EXPECT_TRUE(GoesBefore(first, important, 3 + kPatienceNs)) << "by arrival, not by priority";
}

TEST(TurnTest, IsAStrictWeakOrder) {
  const unsigned seed = 5;
  std::mt19937 random(seed);
  const auto turn = [&] {
    return Turn{static_cast<int64_t>(random() % 3) * kNanosPerSecond,
                static_cast<int32_t>(random() % 3),
                static_cast<int64_t>(random() % 60) * kNanosPerSecond, random() % 4};
  };
  for (int i = 0; i < 20000; ++i) {
    const Turn a = turn(), b = turn(), c = turn();
    const int64_t now = 60 * kNanosPerSecond;
    ASSERT_FALSE(GoesBefore(a, b, now) && GoesBefore(b, a, now)) << "seed " << seed;
    if (GoesBefore(a, b, now) && GoesBefore(b, c, now)) {
      ASSERT_TRUE(GoesBefore(a, c, now)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace withy::policy
