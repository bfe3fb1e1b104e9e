#include "context_store/eviction.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace withy::context_store {
namespace {

using Steps = std::vector<std::pair<uint32_t, uint32_t>>;

Steps StepsOf(const std::vector<IdleContext>& contexts) {
  Steps steps;
  for (const Eviction& eviction : EvictionOrder(contexts)) {
    EXPECT_EQ(eviction.bytes, contexts[eviction.context].chunks[eviction.chunk]);
    steps.emplace_back(eviction.context, eviction.chunk);
  }
  return steps;
}

TEST(EvictionOrder, TheLeastRecentlyUsedContextGoesFirstFromItsTail) {
  EXPECT_EQ(StepsOf({{.last_used = 9, .chunks = {4, 4}}, {.last_used = 3, .chunks = {4, 2, 2}}}),
            (Steps{{1, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}}));
}

TEST(EvictionOrder, WhatIsNotInTheArenaDoesNotLeaveIt) {
  EXPECT_EQ(StepsOf({{.last_used = 1, .chunks = {4, 0, 4, 0}}}), (Steps{{0, 2}, {0, 0}}));
  EXPECT_EQ(StepsOf({}), Steps());
}

}  // namespace
}  // namespace withy::context_store
