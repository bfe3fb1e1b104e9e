// Calls at levels below the full one: those that fall, those whose prompt is shortened, and
// contexts that are brought back to the full level.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/time/clock.h"
#include "engine/model/testing.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

std::vector<int32_t> Ids(const CallOutcome& outcome) {
  std::vector<int32_t> ids;
  for (const engine::Sample& token : outcome.tokens) ids.push_back(token.id);
  return ids;
}

std::unique_ptr<engine::Model> OpenElastic(const engine::TestFolder& folder) {
  engine::SynthShape shape = engine::TinyShape();
  shape.levels = {20, 60};
  return engine::OpenTiny(folder, engine::WriteTiny(folder, shape, engine::GgmlType::kQ8_0));
}

// The tiny real model with levels: one call cannot keep its pace and falls, the one beside it does
// not notice; the fallen one's KV is what its record and its chunks' levels say.
TEST(ElasticCallTest, ACallBehindItsSloFallsToALowerLevel) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = OpenElastic(folder);
  Rig rig(*model, {}, 4096);
  const auto alone = rig.Submit(Rig::Ask("", "beside", 30)).sink->Wait();
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->levels_percent, (std::vector<int32_t>{100}));

  CallRequest hurried = Rig::Ask("c", "a prompt of more than sixteen tokens", 40);
  hurried.targets.tpot_ms = 1e-6;
  const auto fallen = rig.Submit(hurried);
  const auto beside = rig.Submit(Rig::Ask("", "beside", 30));
  const auto outcome = fallen.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->levels_percent, (std::vector<int32_t>{100, 20}));
  const std::pair<int, int32_t> change(1, 20);
  EXPECT_THAT(fallen.sink->level_changes(), testing::ElementsAre(change));
  EXPECT_EQ(Ids(*beside.sink->Wait()), Ids(*alone));
  rig.store.With([](FakeStore::State& state) {
    const FakeStore::Context& context = state.contexts["c"];
    EXPECT_EQ(context.segments[0].level_percent, 100);
    EXPECT_EQ(context.segments[1].level_percent, 20);
    EXPECT_EQ(context.resident.front().name.level_percent, 100);
    EXPECT_EQ(context.resident.back().name.level_percent, 20);
  });
  const auto next = rig.Submit(Rig::Ask("c", "and on", 4)).sink->Wait();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT(next->usage.reused_tokens, outcome->usage.prompt_tokens + 32);
  rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
}

TEST(ElasticCallTest, APromptBehindItsFirstTokenGoesOnAtALowerLevel) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = OpenElastic(folder);
  Rig rig(*model, {}, 4096);
  CallRequest hurried = Rig::Ask("c", "a prompt of more than sixteen tokens", 10);
  hurried.targets.ttft_ms = 0.001;
  const auto fallen = rig.Submit(hurried);
  const auto outcome = fallen.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->levels_percent, (std::vector<int32_t>{20}));
  const std::pair<int, int32_t> told(0, 20);
  EXPECT_THAT(fallen.sink->level_changes(), testing::ElementsAre(told)) << "with the first token";
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.contexts["c"].resident.front().name.level_percent, 20);
    EXPECT_EQ(state.contexts["c"].segments[0].level_percent, 20);
  });
  hurried.targets.ttft_ms = 9e12;  // in centuries
  EXPECT_EQ(rig.Submit(hurried).sink->Wait()->levels_percent, (std::vector<int32_t>{100}));
}

TEST(ElasticCallTest, ALevelThatTheCallerFixedStays) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = OpenElastic(folder);
  Rig rig(*model, {}, 4096);
  CallRequest late = Rig::Ask("", "a prompt of more than sixteen tokens", 10);
  late.targets = {.ttft_ms = 0.001, .tpot_ms = 1e-6};
  late.pace_options.level_fixed = true;
  const auto outcome = rig.Submit(late).sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->levels_percent, (std::vector<int32_t>{100}));
}

// The levels of an answer to a prompt of 23 rows, at 1 ms a row, or 0.4 at 20 % of the model, on a
// board on which a pass takes `slowdown` times what its rows say.
std::vector<int32_t> LevelsOnABoard(double slowdown, policy::CallTargets targets,
                                    std::vector<int32_t>* rows) {
  SteppedModel stepped(kFakeVocab);
  stepped.model.set_levels({20, 100});
  FakeClock clock;
  double row_ms = 0;
  double left_at = 0;
  const auto pass = [&](double share) {
    clock.Advance(static_cast<int64_t>(share * slowdown * row_ms * 1e6));
  };
  stepped.model.on_forward = [&](const engine::Batch& batch) {
    row_ms = static_cast<double>(batch.rows.size()) * (batch.rows.front().level == 0 ? 0.4 : 1);
    rows->push_back(static_cast<int32_t>(batch.rows.size()));
    left_at = 0;
  };
  stepped.model.on_left = [&](double done) { pass(done - std::exchange(left_at, done)); };
  stepped.model.may_finish = [&](const engine::Batch&) {
    pass(1 - left_at);
    return true;
  };
  Rig rig(stepped.model, {.paces = {{0.4, 1}, {1, 2}}}, 512, 256, {.prefill_us_per_token = 1000},
          clock);
  CallRequest request = Rig::Ask("c", "nine", 4);
  targets.arrived_ns = clock.SteadyNanos();
  request.targets = targets;
  const auto outcome = rig.Submit(request).sink->Wait();
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
  return outcome.ok() ? outcome->levels_percent : std::vector<int32_t>();
}

TEST(ElasticCallTest, APromptWhosePassTurnsOutSlowBeginsAgainAtALowerLevel) {
  const policy::CallTargets targets{.ttft_ms = 30};
  std::vector<int32_t> rows;
  EXPECT_THAT(LevelsOnABoard(1, targets, &rows), testing::ElementsAre(100));
  EXPECT_THAT(rows, testing::ElementsAre(23, 1, 1, 1));
  rows.clear();
  EXPECT_THAT(LevelsOnABoard(1.6, targets, &rows), testing::ElementsAre(20));
  EXPECT_THAT(rows, testing::ElementsAre(23, 23, 1, 1, 1)) << "all of it again";
  rows.clear();
  EXPECT_THAT(LevelsOnABoard(9, targets, &rows), testing::ElementsAre(100)) << "late anyway";
}

TEST(ElasticCallTest, TheAnswerToAPromptThatWasSlowBeginsAtALowerLevel) {
  const policy::CallTargets targets{.tpot_ms = 2.6};
  std::vector<int32_t> rows;
  EXPECT_THAT(LevelsOnABoard(1, targets, &rows), testing::ElementsAre(100));
  EXPECT_THAT(LevelsOnABoard(1.6, targets, &rows), testing::ElementsAre(100, 20));
}

TEST(ElasticCallTest, ACallInTimeKeepsItsLevel) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = OpenElastic(folder);
  Rig rig(*model, {}, 4096);
  CallRequest request = Rig::Ask("", "hello", 30);
  request.targets.tpot_ms = 1e6;
  EXPECT_EQ(rig.Submit(request).sink->Wait()->levels_percent, (std::vector<int32_t>{100}));
}

// A shortened prompt is what the model reads; the record keeps all of it, and the next call's
// history is rendered as its KV was made.
TEST(ElasticCallTest, AShortenedPromptStaysWholeInTheRecord) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  CallRequest request = Rig::Ask("c", "keep drop keep", 8);
  request.answer.prompt[0].kept = {{0, 4}, {9, 14}};
  request.pruned_words = 1;
  const auto shortened = rig.Submit(request).sink->Wait();
  ASSERT_TRUE(shortened.ok()) << shortened.status();
  EXPECT_EQ(shortened->usage.pruned_words, 1);
  const auto written = rig.Submit(Rig::Ask("d", "keep keep", 8)).sink->Wait();
  EXPECT_EQ(shortened->text, written->text) << "as if it had been written so";
  EXPECT_EQ(shortened->usage.prompt_tokens, written->usage.prompt_tokens);
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.contexts["c"].segments[0].text, "keep drop keep");
    EXPECT_EQ(state.contexts["c"].segments[0].kept.size(), 2u);
  });
  const auto next = rig.Submit(Rig::Ask("c", "on", 8)).sink->Wait();
  EXPECT_EQ(next->text, rig.Submit(Rig::Ask("d", "on", 8)).sink->Wait()->text);
  EXPECT_EQ(next->usage.reused_tokens, next->usage.context_tokens - 1);
  rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
}

absl::Status Rebuild(Rig& rig, const std::string& context) {
  const auto sink = std::make_shared<RecordingSink>();
  rig.scheduler.SubmitRebuild("app", context, sink);
  return sink->Wait().status();
}

// Context "c" goes on with an answer of 20 % of the model.
bool AnswerAtLowLevel(Rig& rig, const std::string& text, int32_t max_tokens) {
  CallRequest low = Rig::Ask("c", text, max_tokens);
  low.answer.level_percent = 20;
  return rig.Submit(low).sink->Wait().ok();
}

// After it the context is as if the full model had read all of it.
TEST(RebuildTest, BringsAContextToTheFullLevel) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = OpenElastic(folder);
  Rig rig(*model, {}, 4096);
  ASSERT_TRUE(AnswerAtLowLevel(rig, "a prompt of more than sixteen tokens", 40));
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.contexts["c"].resident[1].name.level_percent, 20);
    state.contexts["copy"].segments = state.contexts["c"].segments;  // a record without KV
  });
  EXPECT_EQ(Rebuild(rig, "c"), absl::OkStatus());
  EXPECT_EQ(Rebuild(rig, "copy"), absl::OkStatus());
  rig.store.With([](FakeStore::State& state) {
    const FakeStore::Context& rebuilt = state.contexts["c"];
    EXPECT_EQ(rebuilt.segments.size(), 2u) << "the record stays as it is";
    ASSERT_EQ(rebuilt.resident.size(), state.contexts["copy"].resident.size());
    for (size_t i = 0; i < rebuilt.resident.size(); ++i) {
      EXPECT_EQ(rebuilt.resident[i].name.level_percent, 100);
      EXPECT_EQ(rebuilt.resident[i].name.identity,
                state.contexts["copy"].resident[i].name.identity);
    }
  });
  EXPECT_EQ(Rebuild(rig, "c").code(), absl::StatusCode::kFailedPrecondition) << "nothing to do";
  const auto next = rig.Submit(Rig::Ask("c", "and on", 8)).sink->Wait();
  const auto copy = rig.Submit(Rig::Ask("copy", "and on", 8)).sink->Wait();
  ASSERT_TRUE(next.ok() && copy.ok());
  EXPECT_EQ(Ids(*next), Ids(*copy));
  EXPECT_EQ(next->usage.reused_tokens, copy->usage.reused_tokens);
  EXPECT_GT(next->usage.reused_tokens, 48);
  rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
}

// Only what lies behind the first chunk below the full level is computed again.
TEST(RebuildTest, KeepsWhatIsAtTheFullLevel) {
  SteppedModel stepped(kFakeVocab);
  stepped.model.set_levels({20, 100});
  Rig rig(stepped.model);
  ASSERT_TRUE(
      rig.Submit(Rig::Ask("c", "a prompt of more than sixteen tokens", 20)).sink->Wait().ok());
  ASSERT_TRUE(AnswerAtLowLevel(rig, "and another one, also somewhat long", 20));
  const auto slots = [&] {
    return rig.store.With([](FakeStore::State& state) {
      std::vector<uint32_t> all;
      for (const ResidentChunk& chunk : state.contexts["c"].resident) {
        all.push_back(chunk.where.slot.units);
      }
      return all;
    });
  };
  const auto before = slots();
  ASSERT_EQ(Rebuild(rig, "c"), absl::OkStatus());
  const auto after = slots();
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after.back(), before.back());
}

TEST(RebuildTest, IsGivenUpWhenACallComes) {
  SteppedModel stepped(kFakeVocab);
  stepped.model.set_levels({20, 100});
  Rig rig(stepped.model);
  ASSERT_TRUE(AnswerAtLowLevel(rig, "a prompt of more than sixteen tokens", 40));
  const auto before =
      rig.store.With([](FakeStore::State& state) { return state.contexts["c"].resident.size(); });
  Rig::Running call;
  bool first = true;
  stepped.on_step = [&] {
    if (std::exchange(first, false)) call = rig.Submit(Rig::Ask("c", "hello", 4));
  };
  EXPECT_EQ(Rebuild(rig, "c").code(), absl::StatusCode::kAborted);
  const auto outcome = call.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_GT(outcome->usage.reused_tokens, 48) << "the KV that was there is still there";
  rig.store.With([&](FakeStore::State& state) {
    EXPECT_GE(state.contexts["c"].resident.size(), before);
    EXPECT_EQ(state.faults, 0);
  });
}

TEST(RebuildTest, DoesNotOutliveADrain) {
  SteppedModel stepped(kFakeVocab);
  stepped.model.set_levels({20, 100});
  Rig rig(stepped.model);
  ASSERT_TRUE(AnswerAtLowLevel(rig, "a prompt of more than sixteen tokens", 40));
  rig.store.With([](FakeStore::State& state) { state.hold_commits = true; });
  const auto sink = std::make_shared<RecordingSink>();
  rig.scheduler.SubmitRebuild("app", "c", sink);
  ASSERT_TRUE(Eventually([&] {
    return rig.store.With([](FakeStore::State& state) { return !state.held.empty(); });
  })) << "it has been computed";
  rig.scheduler.Drain(absl::ZeroDuration());
  ASSERT_TRUE(sink->over()) << "its store hangs";
  const int steps = stepped.Steps();
  EXPECT_EQ(Rebuild(rig, "c").code(), absl::StatusCode::kUnavailable) << "none begins any more";
  EXPECT_EQ(stepped.Steps(), steps);
}

TEST(RebuildTest, WaitsForQuiet) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  uint64_t seen = UINT64_MAX;
  ASSERT_TRUE(rig.scheduler.AwaitQuiet(absl::ZeroDuration(), &seen)) << "once at the start";
  ASSERT_TRUE(rig.Submit(Rig::Ask("", "hello")).sink->Wait().ok());
  ASSERT_TRUE(rig.scheduler.AwaitQuiet(absl::ZeroDuration(), &seen)) << "a call has come and gone";
  EXPECT_EQ(seen, 1u);
  std::thread drain([&] { rig.scheduler.Drain(absl::ZeroDuration()); });
  EXPECT_FALSE(rig.scheduler.AwaitQuiet(absl::InfiniteDuration(), &seen)) << "no call since";
  drain.join();
}

}  // namespace
}  // namespace withy::serving
