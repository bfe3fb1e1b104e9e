#include "policy/kv/kv_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/test_seed.h"

namespace withy::policy {
namespace {

TEST(KvAdmissionTest, SomeOrderIsEnough) {
  EXPECT_TRUE(AllCanFinish(0, {}));
  EXPECT_TRUE(AllCanFinish(2, {{.more = 5, .freed = 0}, {.more = 2, .freed = 3}}));
  EXPECT_FALSE(AllCanFinish(1, {{.more = 5, .freed = 0}, {.more = 2, .freed = 3}}));
  EXPECT_FALSE(AllCanFinish(2, {{.more = 6, .freed = 9}, {.more = 2, .freed = 3}}));
}

// As trying every order does.
TEST(KvAdmissionTest, FindsAnOrderWhereThereIsOne) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  int yes = 0, no = 0;
  for (int round = 0; round < 2000; ++round) {
    const uint64_t places = pick(8);
    std::vector<KvHolder> calls(1 + pick(5));
    for (KvHolder& call : calls) call = {.more = pick(12), .freed = pick(6)};
    std::vector<size_t> order(calls.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    bool any = false;
    do {
      uint64_t left = places;
      any = any || std::all_of(order.begin(), order.end(), [&](size_t i) {
              if (calls[i].more > left) return false;
              left += calls[i].freed;
              return true;
            });
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(AllCanFinish(places, calls), any);
    ++(any ? yes : no);
  }
  EXPECT_GT(yes, 100);
  EXPECT_GT(no, 100);
}

TEST(KvAdmissionTest, LeasesOpenedAheadLeaveRoomForTheWindow) {
  EXPECT_EQ(ChunksAhead(1000, 128, 10), kMostAhead);
  EXPECT_EQ(ChunksAhead(228, 128, 10), 5);
  EXPECT_EQ(ChunksAhead(140, 128, 10), 0);
  EXPECT_EQ(ChunksAhead(0, 128, 10), 0);
}

}  // namespace
}  // namespace withy::policy
