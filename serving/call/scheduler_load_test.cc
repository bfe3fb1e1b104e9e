// Calls whose context is still being read from disk, or has to be recomputed in part. The fake
// model's answers depend on every token that it reads from a slot, in one of two layers.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/test_seed.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using State = ResidentChunk::State;

// Runs on, and can be put forward.
class ForwardClock final : public Clock {
 public:
  int64_t SteadyNanos() const override { return Clock::Real().SteadyNanos() + forward_ns; }
  int64_t UnixNanos() const override { return Clock::Real().UnixNanos(); }
  std::atomic<int64_t> forward_ns{0};
};

// A context of several chunks, parts of which are not in the arena when the next call comes.
class SchedulerLoadTest : public testing::Test {
 protected:
  static constexpr int32_t kLayers = engine::FakeModel::kLayers;

  SchedulerLoadTest() {
    const auto first = rig_.Submit(Rig::Ask("c", std::string(80, 'x'), 8));
    EXPECT_TRUE(first.sink->Wait().ok());
    rig_.store.With([&](FakeStore::State& state) {
      resident_ = state.contexts["c"].resident;
      for (const ResidentChunk& chunk : resident_) {
        const std::byte* at = state.arena->memory().base + chunk.where.slot.offset();
        bytes_.emplace_back(at, at + ChunkBytes());
      }
    });
    EXPECT_GE(resident_.size(), 5u);
  }

  size_t ChunkBytes() const {
    return GeometryOf(stepped_.model.info().kv).ChunkBytes(engine::KvFormat::kQ8);
  }
  // What the next call answers when all of the context is there, and how many tokens it computes.
  struct Reference {
    std::string text;
    int32_t prefilled = 0;
  };
  Reference AnswerOf(const std::string& question) {
    SteppedModel stepped(kFakeVocab);
    Rig rig(stepped.model);
    EXPECT_TRUE(rig.Submit(Rig::Ask("c", std::string(80, 'x'), 8)).sink->Wait().ok());
    const auto call = rig.Submit(Rig::Ask("c", question, 8));
    const auto outcome = call.sink->Wait();
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return {call.sink->text(), call.sink->accepted().prefill_tokens};
  }
  // From the next opening on these chunks are in another state, and their slots hold other bytes.
  void Set(const std::set<size_t>& chunks, State state) {
    rig_.store.With([&](FakeStore::State& store) {
      for (const size_t chunk : chunks) {
        std::memset(store.arena->memory().base + resident_[chunk].where.slot.offset(), 'y',
                    ChunkBytes());
        states_[chunk] = state;
      }
      store.on_opened = [this](OpenedLease* opened) {
        for (const auto& [chunk, changed] : states_) opened->resident[chunk].state = changed;
      };
    });
  }
  // A call on the context that has nothing to compute any more before KV arrives.
  Rig::Running Begin() {
    const int before = Asked();
    const auto call = rig_.Submit(Rig::Ask("c", "more", 8));
    EXPECT_TRUE(Eventually([&] { return Asked() >= before + 2; }));
    return call;
  }
  // How often the worker has asked for chunks to compute instead of waiting for them.
  int Asked() {
    return rig_.store.With([](FakeStore::State& state) { return state.yields_asked; });
  }
  // A layer of the chunks that are read has come from disk.
  void Arrive(int32_t layer) {
    Place(layer);
    rig_.store.TellLayers(layer + 1);
  }
  void Place(int32_t layer) {
    const size_t block = ChunkBytes() / kLayers;
    rig_.store.With([&](FakeStore::State& store) {
      for (const auto& [chunk, state] : states_) {
        if (state != State::kReading) continue;
        if (chunk >= failed_) continue;
        const size_t offset = static_cast<size_t>(layer) * block;
        std::memcpy(store.arena->memory().base + resident_[chunk].where.slot.offset() + offset,
                    bytes_[chunk].data() + offset, block);
      }
    });
  }
  void Fail(uint32_t chunk) {
    failed_ = chunk;
    rig_.store.TellFailed(chunk);
  }

  ForwardClock clock_;
  SteppedModel stepped_{kFakeVocab};
  Rig rig_{stepped_.model, {}, 256, 256, {.prefill_us_per_token = 1}, clock_};
  std::vector<ResidentChunk> resident_;
  std::vector<std::vector<std::byte>> bytes_;  // of each chunk
  std::map<size_t, State> states_;
  std::atomic<uint32_t> failed_ = policy::KvLoad::kNone;  // and what lies behind it
};

TEST_F(SchedulerLoadTest, ACallWaitsForTheLayersThatItNeeds) {
  const Reference reference = AnswerOf("more");
  Set({1, 3}, State::kReading);
  const auto call = Begin();
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(call.sink->tokens(), 0);
    Arrive(layer);
  }
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
  EXPECT_EQ(call.sink->accepted().prefill_tokens, reference.prefilled);
}

TEST_F(SchedulerLoadTest, HolesAreComputedWhereverTheyAre) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const Reference reference = AnswerOf("more");
  std::set<size_t> holes;
  for (size_t chunk = 0; chunk + 1 < resident_.size(); ++chunk) {
    if (random() % 2 == 0) holes.insert(chunk);
  }
  Set(holes, State::kToCompute);
  const auto call = rig_.Submit(Rig::Ask("c", "more", 8));
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
  EXPECT_EQ(call.sink->accepted().prefill_tokens,
            reference.prefilled + 16 * static_cast<int32_t>(holes.size()));
  rig_.store.With([&](FakeStore::State& state) {
    state.on_opened = nullptr;
    for (const size_t hole : holes) {
      EXPECT_EQ(state.commits.back().chunks[hole].identity, resident_[hole].name.identity);
    }
  });
  // What was computed again has its headers: the next call uses it.
  const auto next = rig_.Submit(Rig::Ask("c", "and more", 8));
  ASSERT_TRUE(next.sink->Wait().ok());
  EXPECT_EQ(rig_.store.With([](FakeStore::State& state) { return state.faults; }), 0);
  EXPECT_LT(next.sink->accepted().prefill_tokens, 40);
}

TEST_F(SchedulerLoadTest, TheFrontIsComputedWhileTheRestIsRead) {
  const Reference reference = AnswerOf("more");
  Set({0, 1}, State::kToCompute);
  Set({2, 3}, State::kReading);
  const auto call = Begin();
  for (int32_t layer = 0; layer < kLayers; ++layer) Arrive(layer);
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
}

TEST_F(SchedulerLoadTest, WhatCannotBeReadIsComputed) {
  const Reference reference = AnswerOf("more");
  Set({1, 2, 3}, State::kReading);
  const auto call = Begin();
  Fail(2);
  for (int32_t layer = 0; layer < kLayers; ++layer) Arrive(layer);
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
}

// The step that waits for the last layer is told of the failure and of that layer at once.
TEST_F(SchedulerLoadTest, AStepThatHasReadWhatIsLostIsComputedAgain) {
  const Reference reference = AnswerOf("more");
  Set({1, 2, 3}, State::kReading);
  std::atomic<bool> arrived = false;
  stepped_.on_step = [&, told = false]() mutable {
    if (!arrived || std::exchange(told, true)) return;
    Fail(2);
    for (int32_t layer = 1; layer < kLayers; ++layer) Arrive(layer);
  };
  const auto call = Begin();
  arrived = true;
  Arrive(0);
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(failed_, 2u);
  EXPECT_EQ(call.sink->text(), reference.text);
}

// Chunks are read from the back: a later failure may be of an earlier chunk.
TEST_F(SchedulerLoadTest, AnEarlierChunkThatIsLostLaterIsComputed) {
  const Reference reference = AnswerOf("more");
  Set({0, 1, 2, 3}, State::kReading);
  const auto call = Begin();
  Fail(3);
  ASSERT_TRUE(Eventually([&] {
    return rig_.store.With([](FakeStore::State& state) { return state.claimed_from.contains(3); });
  })) << "chunk 3 is claimed to be computed";
  Fail(0);
  for (int32_t layer = 0; layer < kLayers; ++layer) Arrive(layer);
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
}

// The failure is known before the call is prepared.
TEST_F(SchedulerLoadTest, NothingCanBeRead) {
  const Reference reference = AnswerOf("more");
  Set({0, 1, 2, 3}, State::kReading);
  rig_.store.With([](FakeStore::State& store) {
    store.after_opening = {
        {.what = {.kind = policy::KvLoadEvent::Kind::kFailed, .change = 1, .chunks = {0}}}};
  });
  const auto call = rig_.Submit(Rig::Ask("c", "more", 8));
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
}

TEST_F(SchedulerLoadTest, ADiskThatHangsHoldsNothingUp) {
  const Reference reference = AnswerOf("more");
  Set({1, 2, 3}, State::kReading);
  const auto call = Begin();
  clock_.forward_ns = 10 * kNanosPerSecond;
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
}

TEST_F(SchedulerLoadTest, OtherCallsAreComputedMeanwhile) {
  const Reference reference = AnswerOf("more");
  Set({1}, State::kReading);
  const auto waiting = Begin();
  rig_.store.With([](FakeStore::State& state) { state.on_opened = nullptr; });
  const auto other = rig_.Submit(Rig::Ask("", "hello", 12));
  ASSERT_TRUE(other.sink->Wait().ok());
  EXPECT_EQ(waiting.sink->tokens(), 0);
  rig_.scheduler.Cancel(waiting.ticket);
  EXPECT_FALSE(waiting.sink->Wait().ok()) << "a call that waits can be cancelled";
  EXPECT_EQ(AnswerOf("more").text, reference.text);
}

// Chunks are yielded to the worker one after the other; those that nobody reads any more are never
// waited for.
TEST_F(SchedulerLoadTest, ChunksThatAreReadTooSlowlyAreYielded) {
  const Reference reference = AnswerOf("more");
  const auto chunks = static_cast<int32_t>(resident_.size());
  std::set<size_t> all;
  for (size_t chunk = 0; chunk + 1 < resident_.size(); ++chunk) all.insert(chunk);
  Set(all, State::kReading);
  int32_t next = 0;
  std::vector<int32_t> computed;
  rig_.store.With([&](FakeStore::State& store) {
    store.on_yield = [&, asked = 0](FakeStore::State& state, int32_t computed_before,
                                    int32_t most) mutable {
      std::vector<ChunkSlot> left;
      computed.push_back(computed_before);
      EXPECT_GT(most, 0);
      if (++asked % 2 == 0 || next + 2 >= chunks) return left;  // now and then it refuses
      left.push_back({.chunk = next, .slot = {*state.free.begin()}});
      state.free.erase(state.free.begin());
      states_.erase(static_cast<size_t>(next++));
      return left;
    };
  });
  const auto call = rig_.Submit(Rig::Ask("c", "more", 8));
  ASSERT_TRUE(Eventually(
      [&] { return rig_.store.With([&](FakeStore::State&) { return next + 2 >= chunks; }); }));
  for (int32_t layer = 0; layer < kLayers; ++layer) Arrive(layer);
  const auto outcome = call.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(call.sink->text(), reference.text);
  EXPECT_EQ(outcome->usage.prefilled_tokens, reference.prefilled + 16 * (chunks - 2));
  rig_.store.With([&](FakeStore::State& state) {
    EXPECT_TRUE(std::is_sorted(computed.begin(), computed.end()));
    EXPECT_GT(computed.back(), 0);
    for (size_t chunk = 0; chunk + 2 < resident_.size(); ++chunk) {
      EXPECT_EQ(state.commits.back().chunks[chunk].identity, resident_[chunk].name.identity);
    }
    state.on_opened = nullptr;
    state.on_yield = nullptr;
  });
  const auto next_call = rig_.Submit(Rig::Ask("c", "and more", 8));
  ASSERT_TRUE(next_call.sink->Wait().ok());
  EXPECT_EQ(rig_.store.With([](FakeStore::State& state) { return state.faults; }), 0);
}

// A layer that is heard of before the yield which came first waits for it.
TEST_F(SchedulerLoadTest, NoLayerOvertakesAYield) {
  const Reference reference = AnswerOf("more");
  Set({1, 2, 3}, State::kReading);
  const auto call = Begin();
  rig_.store.With([&](FakeStore::State& store) {
    store.on_yield = [&](FakeStore::State& state, int32_t, int32_t) {
      if (!states_.contains(1)) return std::vector<ChunkSlot>();
      // All is in place but chunk 1, whose slot holds other bytes: it is yielded.
      states_.erase(1);
      for (const auto& [chunk, was] : states_) {
        std::memcpy(state.arena->memory().base + resident_[chunk].where.slot.offset(),
                    bytes_[chunk].data(), ChunkBytes());
      }
      state.last_opened.lock()->OnLoad({.what = {.kind = policy::KvLoadEvent::Kind::kLayers,
                                                 .change = state.load_changes,
                                                 .layers = kLayers}});
      const ChunkSlot left{.chunk = 1, .slot = {*state.free.begin()}};
      state.free.erase(state.free.begin());
      return std::vector{left};
    };
  });
  ASSERT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(call.sink->text(), reference.text);
}

// The first layer arrives while the worker's ask is on its way: a step begins, and stands still for
// layers that are told behind the refusal.
TEST_F(SchedulerLoadTest, ARefusalReachesAStepThatWaitsForLayers) {
  const Reference reference = AnswerOf("more");
  Set({1, 2, 3}, State::kReading);
  for (int32_t layer = 0; layer < kLayers; ++layer) Place(layer);
  absl::Notification begun;
  stepped_.on_step = [&] {
    if (!begun.HasBeenNotified()) begun.Notify();
  };
  rig_.store.With([&](FakeStore::State& store) {
    store.on_yield = [&](FakeStore::State& state, int32_t, int32_t) {
      if (begun.HasBeenNotified()) return std::vector<ChunkSlot>();
      state.last_opened.lock()->OnLoad({.what = {.kind = policy::KvLoadEvent::Kind::kLayers,
                                                 .change = state.load_changes - 1,
                                                 .layers = 1}});
      begun.WaitForNotification();
      return std::vector<ChunkSlot>();
    };
  });
  const auto call = rig_.Submit(Rig::Ask("c", "more", 8));
  begun.WaitForNotification();
  rig_.store.TellLayers(kLayers);
  const auto outcome = call.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(call.sink->text(), reference.text);
  EXPECT_EQ(outcome->usage.prefilled_tokens, reference.prefilled) << "it was given up";
}

// Rows, positions and slots of a context with holes, against a walk over all tokens.
TEST(ContextKvHoles, CountAsAWalkDoes) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr engine::KvGeometry kOneLayer{1, 1, 16};
  engine::ModelInfo model;
  model.layers = 1;
  model.kv = {.chunk_tokens = 16,
              .layers = 1,
              .kv_heads = 1,
              .head_dim = 16,
              .block_bytes = kOneLayer.BlockBytes()};
  model.levels = {engine::LevelInfo{}};
  const ChunkNamer namer(ModelIdentity("m", kOneLayer), "", engine::KvFormat::kQ8);
  const auto arena =
      std::make_shared<FakeArena>(1, 16 * kOneLayer.ChunkBytes(engine::KvFormat::kQ8));
  for (int round = 0; round < 300; ++round) {
    const auto chunks = static_cast<int32_t>(random() % 8);
    std::vector<int32_t> tokens(static_cast<size_t>(chunks) * 16 + 1 + random() % 20);
    const std::vector<int32_t> levels(static_cast<size_t>(chunks) + 2, 100);
    std::vector<ResidentChunk> resident;
    std::set<int32_t> missing;
    const std::vector<ChunkName> names = namer.NameAll({}, tokens, levels);
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      const bool hole = random() % 3 == 0;
      resident.push_back(
          {.where = {.chunk = chunk, .slot = NthSlot(kOneLayer, static_cast<uint32_t>(chunk))},
           .name = names[static_cast<size_t>(chunk)],
           .state = hole ? State::kToCompute : State::kReading});
      for (int32_t i = 0; hole && i < 16; ++i) missing.insert(chunk * 16 + i);
    }
    for (int32_t i = chunks * 16; i < 200; ++i) missing.insert(i);
    ContextKv kv(model, namer, arena);
    kv.AdoptResident(resident, tokens, {});
    ASSERT_EQ(kv.reused_tokens(), chunks * 16);
    for (int32_t from = 0; from < chunks * 16 + 10; ++from) {
      const auto next = missing.lower_bound(from);
      EXPECT_EQ(kv.holes().SkipPresent(from), *next);
      const auto to = from + static_cast<int32_t>(random() % 60);
      EXPECT_EQ(kv.holes().Count(from, to), std::distance(next, missing.lower_bound(to)));
      const auto count = static_cast<int32_t>(random() % 40);
      EXPECT_EQ(kv.holes().After(from, count), *std::next(next, count));
    }
    if (chunks == 0) continue;
    const auto cut = static_cast<int32_t>(random() % static_cast<uint32_t>(chunks));
    kv.Truncate(cut);
    EXPECT_EQ(kv.blocks().slots(), cut * 16);
    EXPECT_EQ(kv.holes().Count(cut * 16, 150), 150 - cut * 16);
    EXPECT_EQ(kv.BeginClaim(150)->first, cut);
  }
}

}  // namespace
}  // namespace withy::serving
