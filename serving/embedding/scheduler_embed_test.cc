// Texts that get vectors between the calls of a scheduler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using testing::HasSubstr;

class RecordingEmbed final : public EmbedSink {
 public:
  void Embedded(std::vector<TextVector> more, uint64_t computed_tokens) override {
    for (TextVector& vector : more) vectors.push_back(std::move(vector));
    computed = computed_tokens;
  }
  void Finished() override { over.Notify(); }
  void Failed(const absl::Status& failed) override {
    status = failed;
    over.Notify();
  }
  bool HasLeft() const override { return left; }

  std::atomic<uint64_t> computed{0};  // tokens
  std::atomic<bool> left{false};
  std::vector<TextVector> vectors;
  absl::Status status;
  absl::Notification over;
};

std::unique_ptr<TextEmbedder> EmbedderOf(engine::Model& model, size_t texts, size_t tokens) {
  std::vector<std::vector<int32_t>> ids(texts, std::vector<int32_t>(tokens, 'a'));
  auto embedder = TextEmbedder::Create(model, std::move(ids), model.info().context_length);
  EXPECT_TRUE(embedder.ok()) << embedder.status();
  return *std::move(embedder);
}

TEST(SchedulerEmbedTest, RequestsAreDoneOneAfterTheOther) {
  engine::FakeModel model(kFakeVocab);
  Rig rig(model);
  std::vector<std::shared_ptr<RecordingEmbed>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingEmbed>());
    rig.scheduler.Embed(EmbedderOf(model, 5, 100), sinks.back());
  }
  for (const auto& sink : sinks) {
    sink->over.WaitForNotification();
    EXPECT_TRUE(sink->status.ok()) << sink->status;
    ASSERT_EQ(sink->vectors.size(), 5u);
    EXPECT_EQ(sink->vectors[4].tokens, 100);
    EXPECT_EQ(sink->vectors[4].values['a' % engine::FakeModel::kWidth], 1);
    EXPECT_EQ(sink->computed, 500u);
  }
}

// Their pass does not end before the call's has begun: it is left in its middle.
TEST(SchedulerEmbedTest, ACallThatComesInterruptsThem) {
  engine::FakeModel model(kFakeVocab);
  std::atomic<bool> embedding_began{false};
  std::atomic<bool> call_began{false};
  model.on_forward = [&](const engine::Batch& batch) {
    if (!batch.hidden) call_began = true;
  };
  model.may_finish = [&](const engine::Batch& batch) {
    if (!batch.hidden) return true;
    embedding_began = true;
    return call_began.load();
  };
  Rig rig(model);
  const auto sink = std::make_shared<RecordingEmbed>();
  rig.scheduler.Embed(EmbedderOf(model, 1, 100), sink);
  while (!embedding_began) std::this_thread::yield();
  EXPECT_EQ(sink->computed, 0u);
  const Rig::Running call = rig.Submit(Rig::Ask("", "hello"));
  EXPECT_TRUE(call.sink->Wait().ok());
  sink->over.WaitForNotification();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(sink->vectors.size(), 1u);
}

// A call that never ends by itself does not keep texts from their vectors.
TEST(SchedulerEmbedTest, RunningCallsLeaveThemAShareOfTheTime) {
  engine::FakeModel model(kFakeVocab, /*context_length=*/1 << 20);
  Rig rig(model, {}, /*chunks=*/1 << 12, /*window=*/1 << 16);
  std::atomic<bool> stepping{false};
  model.on_forward = [&](const engine::Batch& batch) {
    if (!batch.hidden) stepping = true;
  };
  const Rig::Running call = rig.Submit(Rig::Ask("", "hello", /*max_tokens=*/1 << 15));
  while (!stepping) std::this_thread::yield();
  const auto sink = std::make_shared<RecordingEmbed>();
  rig.scheduler.Embed(EmbedderOf(model, 2, 100), sink);
  sink->over.WaitForNotification();
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(sink->vectors.size(), 2u);
  rig.scheduler.Cancel(call.ticket);
  EXPECT_TRUE(call.sink->Wait().ok());
}

TEST(SchedulerEmbedTest, EndsWhenItsReaderLeavesOrTheWorkerDrains) {
  engine::FakeModel model(kFakeVocab);
  std::atomic<bool> holds{true};
  std::atomic<bool> begun{false};
  model.may_finish = [&](const engine::Batch&) {
    begun = true;
    return !holds;
  };
  Rig rig(model);
  const auto leaves = std::make_shared<RecordingEmbed>();
  rig.scheduler.Embed(EmbedderOf(model, 1, 100), leaves);
  while (!begun) std::this_thread::yield();
  std::vector<std::shared_ptr<RecordingEmbed>> waiting;
  for (size_t i = 0; i < IdleEmbedder::kMostWaiting; ++i) {
    waiting.push_back(std::make_shared<RecordingEmbed>());
    rig.scheduler.Embed(EmbedderOf(model, 1, 100), waiting.back());
  }
  waiting.back()->over.WaitForNotification();
  EXPECT_TRUE(absl::IsResourceExhausted(waiting.back()->status)) << waiting.back()->status;
  leaves->left = true;
  const auto late = std::make_shared<RecordingEmbed>();
  rig.scheduler.Embed(EmbedderOf(model, 1, 100), late);  // the present slice ends for it
  leaves->over.WaitForNotification();
  EXPECT_TRUE(absl::IsCancelled(leaves->status)) << leaves->status;
  EXPECT_TRUE(leaves->vectors.empty());
  rig.scheduler.Drain(absl::ZeroDuration());
  waiting.front()->over.WaitForNotification();
  EXPECT_THAT(std::string(waiting.front()->status.message()), HasSubstr("shutting down"));
  const auto refused = std::make_shared<RecordingEmbed>();
  rig.scheduler.Embed(EmbedderOf(model, 1, 100), refused);
  refused->over.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(refused->status)) << refused->status;
  holds = false;
}

}  // namespace
}  // namespace withy::serving
