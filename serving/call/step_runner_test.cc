// Steps without store and threads: calls with their slots at hand.
#include "serving/call/step_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving/call/testing.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::serving {
namespace {

class StepRunnerTest : public testing::Test, private StepResults {
 protected:
  StepRunnerTest()
      : model_(chat_.tokenizer->vocab_size()),
        namer_(ModelIdentity("m", {2, 1, 16}), "", engine::KvFormat::kQ8),
        env_{.model = model_.info(), .encoder = *chat_.encoder, .namer = namer_, .window = kWindow},
        recorder_(telemetry::Recorder::Disabled()),
        metrics_(*recorder_),
        inbox_(clock_),
        runner_(model_,
                {.max_batch = 4,
                 .learner = {.us_per_row = 1, .full_row_ms = 1},
                 .levels = {{1, 2}},
                 .speculation = {}},
                calls_, inbox_, *this, clock_, metrics_) {
    model_.on_forward = [this](const engine::Batch& batch) {
      rows_.push_back(static_cast<int32_t>(batch.rows.size()));
    };
  }

  // A running call that has slots for the whole window.
  Call& Add(const std::string& text, int64_t deadline_ns = 0, int32_t max_tokens = 3) {
    auto call = std::make_unique<Call>();
    call->ticket = calls_.size() + 1;
    call->turn = {.deadline_ns = deadline_ns,
                  .priority = 0,
                  .arrived_ns = clock_.SteadyNanos(),
                  .id = call->ticket};
    call->request.answer.prompt = {engine::UserSays(text)};
    call->request.answer.max_tokens = max_tokens;
    const engine::KvGeometry geometry = GeometryOf(model_.info().kv);
    const auto arena =
        std::make_shared<FakeArena>(1, 16 * geometry.ChunkBytes(engine::KvFormat::kQ8));
    OpenedLease opened{.segments = {}, .resident = {}, .claimed = {}, .arena = arena};
    for (uint32_t chunk = 0; chunk < kWindow / engine::kChunkTokens; ++chunk) {
      opened.claimed.push_back(
          {.chunk = static_cast<int32_t>(chunk), .slot = NthSlot(geometry, chunk)});
    }
    auto session = Session::Create(env_, call->request, std::move(opened));
    EXPECT_TRUE(session.ok()) << session.status();
    call->session = *std::move(session);
    call->phase = CallPhase::kRunning;
    call->sink = std::make_shared<RecordingSink>();
    call->pacer = policy::Pacer({}, max_tokens);
    return *calls_.emplace(call->ticket, std::move(call)).first->second;
  }
  StepResults& results() { return *this; }
  static const RecordingSink& SinkOf(const Call& call) {
    return static_cast<const RecordingSink&>(*call.sink);
  }

  void OnComputed(Call& call) override {
    computed_.push_back(call.ticket);
    if (call.session->answer().finished()) call.phase = CallPhase::kCommitting;
  }
  void OnRefused(Call& call, const absl::Status&) override { calls_.erase(call.ticket); }

  CrawlingClock clock_;
  engine::ChatFixture chat_;
  engine::FakeModel model_;
  ChunkNamer namer_;
  SessionEnv env_;
  std::unique_ptr<telemetry::Recorder> recorder_;
  WorkerMetrics metrics_;
  TaskInbox inbox_;
  Calls calls_;
  std::vector<int32_t> rows_;     // of each pass that began
  std::vector<Ticket> computed_;  // in the order of OnComputed
  StepRunner runner_;
};

TEST_F(StepRunnerTest, PromptsAndAnswersShareSteps) {
  EXPECT_FALSE(runner_.Step()) << "there is no call";
  const Call& first = Add("hello");
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(first).tokens(), 1);
  const Call& second = Add("hello you");
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(first).tokens(), 2);
  EXPECT_EQ(SinkOf(second).tokens(), 1);
  EXPECT_TRUE(runner_.Step());
  EXPECT_TRUE(runner_.Step());
  EXPECT_FALSE(runner_.Step()) << "both have ended";
  EXPECT_THAT(computed_, testing::ElementsAre(1, 1, 2, 1, 2, 2));
  EXPECT_EQ(rows_[0] + 4 + 1, rows_[1]) << "four letters more and a row of the answer";
  EXPECT_EQ(rows_[2], 2);
  EXPECT_EQ(rows_[3], 1);
}

// A device that computes many rows at once says how many.
TEST_F(StepRunnerTest, APromptAloneComesInThePiecesOfTheDevice) {
  StepRunner runner(model_,
                    {.max_batch = 4,
                     .learner = {.us_per_row = 1, .full_row_ms = 1},
                     .rows_without_answers = 24,
                     .levels = {{1, 2}},
                     .speculation = {}},
                    calls_, inbox_, results(), clock_, metrics_);
  const Call& call = Add(std::string(60, 'x'));
  while (SinkOf(call).tokens() == 0) ASSERT_TRUE(runner.Step());
  ASSERT_GE(rows_.size(), 3u);
  EXPECT_EQ(rows_[0], 24);
  EXPECT_EQ(rows_[1], 24);
}

TEST_F(StepRunnerTest, AnUrgentPromptPreemptsTheStepUnderWay) {
  const Call& slow = Add(std::string(60, 'x'));
  bool may_finish = false;
  model_.may_finish = [&](const engine::Batch& batch) {
    if (!may_finish && batch.rows.size() > 60) inbox_.Post([] {});  // leaves the step
    return may_finish || batch.rows.size() < 60;
  };
  EXPECT_TRUE(runner_.Step());
  EXPECT_TRUE(runner_.IsUnderWay(slow));
  EXPECT_FALSE(runner_.SharesStepUnderWay(slow));
  inbox_.Run(absl::ZeroDuration());
  const Call& urgent = Add("now", clock_.SteadyNanos() + kNanosPerSecond);
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(urgent).tokens(), 1);
  EXPECT_EQ(SinkOf(slow).tokens(), 0);
  EXPECT_TRUE(runner_.IsUnderWay(slow));
  may_finish = true;
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(slow).tokens(), 1);
  EXPECT_EQ(rows_.size(), 2u) << "nothing is computed twice";
}

// A step in between would read all weights once more; the urgent rows share the next step's reads.
TEST_F(StepRunnerTest, WhereWeightsAreStreamedNothingPreemptsAStep) {
  model_.weights.buffer_bytes = 1;
  const Call& slow = Add(std::string(60, 'x'));
  bool may_finish = false;
  model_.may_finish = [&](const engine::Batch&) {
    if (!may_finish) inbox_.Post([] {});  // leaves the step
    return may_finish;
  };
  EXPECT_TRUE(runner_.Step());
  inbox_.Run(absl::ZeroDuration());
  const Call& urgent = Add("now", clock_.SteadyNanos() + kNanosPerSecond);
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(rows_.size(), 1u);
  inbox_.Run(absl::ZeroDuration());
  may_finish = true;
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(slow).tokens(), 1);
  EXPECT_EQ(SinkOf(urgent).tokens(), 0);
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(urgent).tokens(), 1);
  EXPECT_EQ(rows_.size(), 2u);
}

TEST_F(StepRunnerTest, WeightsThatCannotBeReadEndTheCallsOfTheStep) {
  Add("hello");
  Add("hello you");
  model_.failure = [](const engine::Batch&) { return absl::UnavailableError("no disk"); };
  EXPECT_TRUE(runner_.Step());
  EXPECT_TRUE(calls_.empty());
  model_.failure = nullptr;
  const Call& next = Add("hello");
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(next).tokens(), 1);
}

TEST_F(StepRunnerTest, WhatIsDeferredRunsOnceNoStepIsUnderWay) {
  const Call& call = Add("hello");
  bool may_finish = false;
  model_.may_finish = [&](const engine::Batch&) {
    if (!may_finish) inbox_.Post([] {});
    return may_finish;
  };
  EXPECT_TRUE(runner_.Step());
  bool ran = false;
  runner_.Defer([&] { ran = true; });
  inbox_.Run(absl::ZeroDuration());
  may_finish = true;
  EXPECT_TRUE(runner_.Step());
  EXPECT_FALSE(ran);
  EXPECT_FALSE(runner_.IsUnderWay(call));
  EXPECT_TRUE(runner_.Step());
  EXPECT_TRUE(ran);
}

TEST_F(StepRunnerTest, AnAbandonedStepIsComputedAnew) {
  const Call& call = Add("hello");
  bool may_finish = false;
  model_.may_finish = [&](const engine::Batch&) {
    if (!may_finish) inbox_.Post([] {});
    return may_finish;
  };
  EXPECT_TRUE(runner_.Step());
  runner_.AbandonStepOf(call);
  EXPECT_FALSE(runner_.IsUnderWay(call));
  inbox_.Run(absl::ZeroDuration());
  may_finish = true;
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(SinkOf(call).tokens(), 1);
  ASSERT_EQ(rows_.size(), 2u);
  EXPECT_EQ(rows_[0], rows_[1]);
}

TEST_F(StepRunnerTest, ACallWhoseReaderIsBehindPauses) {
  Call& call = Add("hello");
  EXPECT_TRUE(runner_.Step());
  auto& sink = static_cast<RecordingSink&>(*call.sink);
  sink.set_has_room(false);
  EXPECT_FALSE(runner_.Step());
  EXPECT_NE(call.paused_since_ns, 0);
  sink.set_has_room(true);
  EXPECT_TRUE(runner_.Step());
  EXPECT_EQ(call.paused_since_ns, 0);
  EXPECT_EQ(sink.tokens(), 2);
}

// Passes are phases, and what they are of is told by their sequence.
TEST_F(StepRunnerTest, PassesAreRecordedWithTheIndexOfTheirTokens) {
  const std::string directory = testing::TempDir() + "step_runner_rings";
  auto recorder = telemetry::Recorder::Open(directory, "worker");
  auto reader = telemetry::Reader::Open(directory);
  ASSERT_TRUE(recorder.ok() && reader.ok());
  WorkerMetrics metrics(**recorder);
  StepRunner runner(model_,
                    {.max_batch = 4,
                     .learner = {.us_per_row = 1, .full_row_ms = 1},
                     .levels = {{1, 2}},
                     .speculation = {}},
                    calls_, inbox_, results(), clock_, metrics);
  Call& call = Add("hello");
  call.request.call_id = 5;
  while (runner.Step()) {
  }
  std::vector<std::pair<std::string, uint32_t>> passes;
  std::vector<uint32_t> sampled;
  (*reader)->Drain([&](const telemetry::SpanEvent& event) {
    EXPECT_EQ(event.span.call_id, 5u);
    if (event.name == "sampling") {
      sampled.push_back(event.span.sequence);
    } else {
      passes.emplace_back(event.name, event.span.sequence);
    }
  });
  EXPECT_THAT(passes, testing::ElementsAre(std::pair("prefill", 0), std::pair("decode", 1),
                                           std::pair("decode", 2)));
  EXPECT_THAT(sampled, testing::ElementsAre(0, 1, 2));
}

// Passes of a warm board tell its speed, and the worker hears of it.
TEST_F(StepRunnerTest, PassesTellTheBoardsSpeed) {
  EXPECT_EQ(metrics_.board_slowdown(), 0) << "nothing is known yet";
  Add("hello", 0, 40);
  while (runner_.Step()) {
  }
  EXPECT_GT(metrics_.board_slowdown(), 0);
}

}  // namespace
}  // namespace withy::serving
