#include "context_store/block_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace withy::context_store {
namespace {

TEST(BlockPool, EveryBlockIsGivenOnce) {
  BlockPool pool;
  pool.Reset(10);
  BlockIds a, b;
  ASSERT_TRUE(pool.Claim(4, 1, &a));
  ASSERT_TRUE(pool.Claim(6, 2, &b));
  EXPECT_FALSE(pool.Claim(1, 3, &a));
  std::set<uint32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all.size(), 10u);
  EXPECT_EQ(pool.counts().claimed, 10u);
}

TEST(BlockPool, QuarantinedBlocksComeBackOnlyForTheirWriter) {
  BlockPool pool;
  pool.Reset(4);
  BlockIds a, b, c;
  ASSERT_TRUE(pool.Claim(2, 1, &a));
  ASSERT_TRUE(pool.Claim(2, 2, &b));
  pool.Quarantine(a, 100);
  pool.Quarantine(b, 200);
  EXPECT_FALSE(pool.Claim(1, 3, &c));
  EXPECT_EQ(pool.Release(300), 0u);
  EXPECT_EQ(pool.Release(100), 2u);
  EXPECT_FALSE(pool.Claim(3, 3, &c));
  EXPECT_TRUE(pool.Claim(2, 3, &c));
  EXPECT_EQ(pool.counts().quarantined, 2u);
}

TEST(BlockPoolDeathTest, FreeingTwiceEndsTheProcess) {
  BlockPool pool;
  pool.Reset(1);
  BlockIds a;
  ASSERT_TRUE(pool.Claim(1, 1, &a));
  pool.Free(a);
  EXPECT_DEATH(pool.Free(a), "broken invariant");
}

}  // namespace
}  // namespace withy::context_store
