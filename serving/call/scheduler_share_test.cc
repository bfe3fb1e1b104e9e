// Calls that take over chunks which other contexts have computed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/model/testing.h"
#include "serving/call/scheduler.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

// The chunks of a context that are wanted at the full level.
std::vector<ResidentChunk> SharedOf(const std::vector<ResidentChunk>& other,
                                    const WantedChunks& wanted) {
  std::vector<ResidentChunk> shared;
  const auto first = static_cast<size_t>(wanted.first_chunk);
  for (size_t i = 0; i < wanted.ways[0].size() && first + i < other.size(); ++i) {
    if (other[first + i].name.identity != wanted.ways[0][i].identity) break;
    shared.push_back(other[first + i]);
  }
  return shared;
}

TEST(SchedulerShareTest, AContextTakesOverWhatAnotherOneHasComputed) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  const std::string prompt = std::string(120, 'x') + "first";
  const auto first = rig.Submit(Rig::Ask("c", prompt)).sink->Wait();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->usage.reused_tokens, 0);
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.shares, 1) << "it asks, and nobody has anything";
    state.on_share = [](FakeStore::State& now, const WantedChunks& wanted) {
      return SharedOf(now.contexts["c"].resident, wanted);
    };
  });
  const auto same = rig.Submit(Rig::Ask("d", prompt)).sink->Wait();
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->text, first->text);
  EXPECT_GE(same->usage.reused_tokens, 112);
  EXPECT_EQ(same->usage.reused_tokens % engine::kChunkTokens, 0);
  EXPECT_LE(same->usage.prefilled_tokens, engine::kChunkTokens);
  const auto fork = rig.Submit(Rig::Ask("e", std::string(120, 'x') + "other")).sink->Wait();
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_GE(fork->usage.reused_tokens, 112);
  rig.store.With([](FakeStore::State& state) {
    for (const char* context : {"d", "e"}) {
      EXPECT_EQ(state.contexts[context].resident[0].where.slot,
                state.contexts["c"].resident[0].where.slot);
    }
    EXPECT_EQ(state.faults, 0);
  });
}

TEST(SchedulerShareTest, StatelessCallsAskForNothing) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  ASSERT_TRUE(rig.Submit(Rig::Ask("", std::string(120, 'x'))).sink->Wait().ok());
  rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.shares, 0); });
}

}  // namespace
}  // namespace withy::serving
