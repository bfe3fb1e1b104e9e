#include "draft_worker/answerer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <string>

#include "absl/synchronization/notification.h"
#include "engine/model/testing.h"

namespace withy::draft_worker {
namespace {

using testing::HasSubstr;

// Records the events of a call; can block at its first token until told to continue.
class TestSink final : public AnswerSink {
 public:
  void Begun(int32_t queue_position) override { position = queue_position; }
  void Progress(int32_t computed, int32_t tokens) override {
    progress.emplace_back(computed, tokens);
  }
  void Delta(const engine::AnswerDelta& delta) override {
    text += delta.text;
    if (++deltas == 1 && hold) {
      held.release();
      go.acquire();
    }
  }
  void Done(const absl::StatusOr<engine::SoloResult>& done, int64_t /*arrived_ns*/) override {
    result = done;
    over.Notify();
  }
  bool cancelled() const override { return cancel; }

  bool hold = false;
  std::binary_semaphore held{0};
  std::binary_semaphore go{0};
  std::atomic<bool> cancel{false};
  std::atomic<int> deltas{0};
  int32_t position = -1;
  std::string text;
  std::vector<std::pair<int32_t, int32_t>> progress;
  absl::StatusOr<engine::SoloResult> result;
  absl::Notification over;
};

class AnswererTest : public testing::Test {
 protected:
  AnswererTest() {
    engine::ServedModelOptions options;
    options.path = engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0);
    options.model.cache_dir = folder_.path();
    options.model.threads = 1;
    auto model = engine::OpenServedModel(options);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  std::unique_ptr<Answerer> Start(size_t queue_limit = 4) {
    return std::make_unique<Answerer>(
        *model_, Answerer::Options{.queue_limit = queue_limit, .piece_rows = 16}, Clock::Real(),
        *recorder_);
  }
  static engine::AnswerRequest Ask(const std::string& text, int32_t max_tokens = 12) {
    engine::AnswerRequest request;
    request.prompt = {{.role = "user", .text = text}};
    request.max_tokens = max_tokens;
    return request;
  }

  engine::TestFolder folder_;
  std::unique_ptr<engine::ServedModel> model_;
  std::unique_ptr<telemetry::Recorder> recorder_ = telemetry::Recorder::Disabled();
};

TEST_F(AnswererTest, SameQuestionSameAnswerOneAfterAnother) {
  const auto answerer = Start();
  std::vector<std::shared_ptr<TestSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<TestSink>());
    ASSERT_TRUE(answerer->Submit(1, Ask("hello there"), sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    sink->over.WaitForNotification();
    ASSERT_TRUE(sink->result.ok()) << sink->result.status();
    EXPECT_EQ(sink->result->reason, engine::FinishReason::kMaxTokens);
    EXPECT_EQ(sink->result->tokens.size(), 12u);
    EXPECT_EQ(sink->result->text, sink->text);
    EXPECT_EQ(sink->text, sinks[0]->text);
  }
}

TEST_F(AnswererTest, QueueIsBoundedAndPositionsAreTold) {
  const auto answerer = Start(/*queue_limit=*/1);
  const auto first = std::make_shared<TestSink>();
  first->hold = true;
  ASSERT_TRUE(answerer->Submit(1, Ask("hello"), first).ok());
  first->held.acquire();
  const auto second = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(2, Ask("hello"), second).ok());
  const absl::Status full = answerer->Submit(3, Ask("hello"), std::make_shared<TestSink>());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("draft.queue_limit"));
  first->go.release();
  second->over.WaitForNotification();
  EXPECT_EQ(second->position, 1);
}

TEST_F(AnswererTest, WhatItsCallerCancelsStopsAtItsNextStepAndIsAResult) {
  const auto answerer = Start();
  const auto sink = std::make_shared<TestSink>();
  sink->hold = true;
  ASSERT_TRUE(answerer->Submit(1, Ask("hello", 400), sink).ok());
  sink->held.acquire();
  EXPECT_FALSE(answerer->Cancel(2));
  EXPECT_TRUE(answerer->Cancel(1));
  sink->go.release();
  sink->over.WaitForNotification();
  ASSERT_TRUE(sink->result.ok());
  EXPECT_EQ(sink->result->reason, engine::FinishReason::kCancelled);
  EXPECT_EQ(sink->result->tokens.size(), 1u);
  // The next call is not cancelled.
  const auto next = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(1, Ask("hello"), next).ok());
  next->over.WaitForNotification();
  ASSERT_TRUE(next->result.ok()) << next->result.status();
  EXPECT_EQ(next->result->tokens.size(), 12u);
}

TEST_F(AnswererTest, ACallThatWaitsCanBeCancelled) {
  const auto answerer = Start();
  const auto running = std::make_shared<TestSink>();
  running->hold = true;
  ASSERT_TRUE(answerer->Submit(1, Ask("hello"), running).ok());
  running->held.acquire();
  const auto waiting = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(2, Ask("hello"), waiting).ok());
  EXPECT_TRUE(answerer->Cancel(2));
  waiting->over.WaitForNotification();
  EXPECT_EQ(waiting->result.status().code(), absl::StatusCode::kCancelled);
  running->go.release();
  running->over.WaitForNotification();
  EXPECT_TRUE(running->result.ok()) << running->result.status();
}

TEST_F(AnswererTest, ACallerThatIsGoneGetsNoPartForAnAnswer) {
  const auto answerer = Start();
  const auto sink = std::make_shared<TestSink>();
  sink->hold = true;
  ASSERT_TRUE(answerer->Submit(1, Ask("hello", 400), sink).ok());
  sink->held.acquire();
  sink->cancel = true;
  sink->go.release();
  sink->over.WaitForNotification();
  EXPECT_EQ(sink->result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sink->deltas, 1) << "it stopped at its next step";
}

TEST_F(AnswererTest, TooLongPromptIsOutOfRangeAndOthersGoOn) {
  const auto answerer = Start();
  const auto longer = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(1, Ask(std::string(5000, '?')), longer).ok());
  const auto fine = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(2, Ask("hello"), fine).ok());
  fine->over.WaitForNotification();
  EXPECT_EQ(longer->result.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(fine->result.ok());
}

TEST_F(AnswererTest, ALongPromptsProgressIsTold) {
  const auto answerer = Start();
  const auto sink = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(1, Ask(std::string(60, '?')), sink).ok());
  sink->over.WaitForNotification();
  ASSERT_TRUE(sink->result.ok()) << sink->result.status();
  const int32_t tokens = sink->result->prompt_tokens;
  ASSERT_EQ(sink->progress.size(), static_cast<size_t>((tokens - 1) / 16)) << "pieces of 16 rows";
  for (size_t i = 0; i < sink->progress.size(); ++i) {
    EXPECT_EQ(sink->progress[i], std::pair(static_cast<int32_t>(i + 1) * 16, tokens));
  }
}

TEST_F(AnswererTest, DrainEndsWhatWaitsAndRefusesMore) {
  const auto answerer = Start();
  const auto running = std::make_shared<TestSink>();
  running->hold = true;
  ASSERT_TRUE(answerer->Submit(1, Ask("hello", 400), running).ok());
  running->held.acquire();
  const auto waiting = std::make_shared<TestSink>();
  ASSERT_TRUE(answerer->Submit(2, Ask("hello"), waiting).ok());
  std::thread drain([&] { answerer->Drain(absl::ZeroDuration()); });
  waiting->over.WaitForNotification();
  EXPECT_EQ(waiting->result.status().code(), absl::StatusCode::kUnavailable);
  running->go.release();
  drain.join();
  running->over.WaitForNotification();
  EXPECT_EQ(running->result.status().code(), absl::StatusCode::kUnavailable)
      << "a part is no answer";
  EXPECT_EQ(answerer->Submit(3, Ask("x"), std::make_shared<TestSink>()).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace withy::draft_worker
