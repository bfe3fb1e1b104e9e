#include "context_store/eviction.h"

#include <gtest/gtest.h>

#include <random>

namespace withy::context_store {
namespace {

TEST(Eviction, TakesTheOldestFirstFromItsTail) {
  const std::vector<IdleContext> contexts = {{30, 5}, {10, 3}, {20, 4}};
  const auto plan = PlanEviction(contexts, 5);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].context, 1u);
  EXPECT_EQ(plan[0].keep_chunks, 0u);
  EXPECT_EQ(plan[1].context, 2u);
  EXPECT_EQ(plan[1].keep_chunks, 2u);
}

TEST(Eviction, IsAllOrNothing) {
  const std::vector<IdleContext> contexts = {{1, 2}, {2, 2}};
  EXPECT_TRUE(PlanEviction(contexts, 5).empty());
  EXPECT_TRUE(PlanEviction(contexts, 0).empty());
  EXPECT_EQ(PlanEviction(contexts, 4).size(), 2u);
}

TEST(Eviction, FreesExactlyWhatIsAskedAndSparesTheYoungest) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<IdleContext> contexts(random() % 8 + 1);
    uint64_t total = 0;
    for (size_t i = 0; i < contexts.size(); ++i) {
      contexts[i] = {random() % 1000 * 100 + i, static_cast<uint32_t>(random() % 6)};
      total += contexts[i].chunks;
    }
    const uint64_t wanted = random() % (total + 2);
    const auto plan = PlanEviction(contexts, wanted);
    if (wanted > total || wanted == 0) {
      EXPECT_TRUE(plan.empty());
      continue;
    }
    uint64_t freed = 0;
    uint64_t youngest = 0;
    std::vector<uint32_t> kept(contexts.size());
    for (size_t i = 0; i < contexts.size(); ++i) kept[i] = contexts[i].chunks;
    for (const Eviction& e : plan) {
      freed += contexts[e.context].chunks - e.keep_chunks;
      kept[e.context] = e.keep_chunks;
      youngest = std::max(youngest, contexts[e.context].last_used);
    }
    EXPECT_EQ(freed, wanted);
    for (size_t i = 0; i < contexts.size(); ++i) {
      if (contexts[i].last_used < youngest) {
        EXPECT_EQ(kept[i], 0u);
      }
    }
  }
}

}  // namespace
}  // namespace withy::context_store
