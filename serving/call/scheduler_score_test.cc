// Texts that are scored between the calls of a scheduler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/session/text_scorer.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using testing::HasSubstr;

class RecordingScore final : public ScoreSink {
 public:
  void Scored(std::span<const engine::Sample> tokens, const ScoreProgress& progress) override {
    scored += static_cast<int>(tokens.size());
    computed = progress.computed_tokens;
  }
  void Finished(const std::vector<engine::TextScore>& scores) override {
    losses = scores.back().losses.size();
    over.Notify();
  }
  void Failed(const absl::Status& failed) override {
    status = failed;
    over.Notify();
  }
  bool HasRoom() const override { return room; }
  bool HasLeft() const override { return left; }

  std::atomic<int> scored{0};
  std::atomic<uint64_t> computed{0};  // tokens
  std::atomic<bool> room{true};
  std::atomic<bool> left{false};
  size_t losses = 0;
  absl::Status status;
  absl::Notification over;
};

std::unique_ptr<engine::TextScorer> ScorerOf(engine::Model& model, size_t tokens) {
  std::vector<int32_t> ids(tokens, 'a');
  auto scorer = engine::TextScorer::Create({{.model = &model}}, {.ids = std::move(ids)},
                                           {.report_tokens = true});
  EXPECT_TRUE(scorer.ok()) << scorer.status();
  return *std::move(scorer);
}

TEST(SchedulerScoreTest, ATextIsScoredWhileNothingElseIsToBeDone) {
  engine::FakeModel model(kFakeVocab);
  Rig rig(model);
  const auto sink = std::make_shared<RecordingScore>();
  rig.scheduler.Score(ScorerOf(model, 200), sink);
  sink->over.WaitForNotification();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(sink->losses, 199u);
  EXPECT_EQ(sink->scored, 199);
  EXPECT_EQ(sink->computed, 199u);
}

TEST(SchedulerScoreTest, CallsComeFirst) {
  engine::FakeModel model(kFakeVocab);
  std::atomic<bool> scoring_began{false};
  std::atomic<bool> call_is_over{false};
  // The text's passes do not end before the call has: one is left in its middle.
  model.may_finish = [&](const engine::Batch& batch) {
    const bool of_text =
        batch.rows.size() > 1 && batch.rows.back().want_logits && batch.rows.front().want_logits;
    if (!of_text) return true;
    scoring_began = true;
    return call_is_over.load();
  };
  Rig rig(model);
  const auto sink = std::make_shared<RecordingScore>();
  rig.scheduler.Score(ScorerOf(model, 200), sink);
  while (!scoring_began) std::this_thread::yield();
  const Rig::Running call = rig.Submit(Rig::Ask("", "hello"));
  const auto outcome = call.sink->Wait();
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(sink->scored, 0);
  call_is_over = true;
  sink->over.WaitForNotification();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(sink->losses, 199u);
}

TEST(SchedulerScoreTest, EndsWhenItsReaderLeavesOrTheWorkerDrains) {
  engine::FakeModel model(kFakeVocab);
  Rig rig(model);
  const auto waiting = std::make_shared<RecordingScore>();
  waiting->room = false;
  rig.scheduler.Score(ScorerOf(model, 200), waiting);
  const auto second = std::make_shared<RecordingScore>();
  rig.scheduler.Score(ScorerOf(model, 200), second);
  second->over.WaitForNotification();
  EXPECT_TRUE(absl::IsResourceExhausted(second->status)) << second->status;
  waiting->left = true;
  waiting->over.WaitForNotification();
  EXPECT_TRUE(absl::IsCancelled(waiting->status)) << waiting->status;
  EXPECT_EQ(waiting->scored, 0) << "nothing is computed that the reader has no room for";

  const auto drained = std::make_shared<RecordingScore>();
  drained->room = false;
  rig.scheduler.Score(ScorerOf(model, 200), drained);
  rig.scheduler.Drain(absl::ZeroDuration());
  drained->over.WaitForNotification();
  EXPECT_THAT(std::string(drained->status.message()), HasSubstr("shutting down"));
  const auto late = std::make_shared<RecordingScore>();
  rig.scheduler.Score(ScorerOf(model, 200), late);
  late->over.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(late->status)) << late->status;
}

}  // namespace
}  // namespace withy::serving
