// Trees that grow while a step waits for its weights: answers are those of plain decoding, and
// steps begin with what grew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/disk_io.h"
#include "engine/model/testing.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

constexpr auto kByPrefix = static_cast<size_t>(policy::DraftSourceKind::kPrefix);

// A disk that takes a fifth of a millisecond for each read.
class SlowQueue final : public DiskQueue {
 public:
  explicit SlowQueue(uint32_t depth) : inner_(DiskQueue::CreateBest(depth)) {}
  Kind kind() const override { return inner_->kind(); }
  void Prepare(std::span<std::byte> memory) override { inner_->Prepare(memory); }
  void Submit(const DiskRequest& request) override { inner_->Submit(request); }
  std::optional<DiskCompletion> Wait() override {
    const std::optional<DiskCompletion> completion = inner_->Wait();
    if (completion.has_value()) absl::SleepFor(absl::Microseconds(200));
    return completion;
  }
  void Wake() override { inner_->Wake(); }

 private:
  const std::unique_ptr<DiskQueue> inner_;
};

class SpeculatorWindowsTest : public testing::Test {
 protected:
  SpeculatorWindowsTest() {
    engine::SynthShape shape = engine::TinyShape();
    shape.layers = 6;
    shape.d_ff = 2048;
    shape.levels = {40, 70};
    const std::string path = engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0);
    resident_ = engine::OpenTiny(folder_, path);
    engine::ModelOptions options;
    options.weight_budget_bytes =
        static_cast<uint64_t>(resident_->info().weight_bytes) * kBudgetPercent / 100;
    options.stream.make_queue = [](uint32_t depth) { return std::make_unique<SlowQueue>(depth); };
    streamed_ = engine::OpenTiny(folder_, path, options);
  }

  static SchedulerOptions Options(bool always, bool windows) {
    SchedulerOptions options;
    options.max_batch = 4;
    options.speculation = {
        .enabled = true, .always = always, .windows = windows, .max_tree_rows = 17};
    return options;
  }
  // Greedy and sampled ones, in contexts and without.
  static std::vector<CallRequest> Requests() {
    std::vector<CallRequest> requests;
    for (uint64_t i = 0; i < 4; ++i) {
      CallRequest request = Rig::Ask(i == 3 ? "" : "c" + std::to_string(i),
                                     std::string(5 * i + 3, 'x'), 16 + static_cast<int32_t>(5 * i));
      request.call_id = i + 1;
      request.speculation =
          i == 1 ? policy::SpeculationMode::kAuto : policy::SpeculationMode::kPrefix;
      if (i > 0) request.answer.sampling = {.temperature = 4, .seed = i};
      requests.push_back(request);
    }
    return requests;
  }
  static std::vector<int32_t> IdsOf(const CallOutcome& outcome) {
    std::vector<int32_t> ids;
    for (const engine::Sample& token : outcome.tokens) ids.push_back(token.id);
    return ids;
  }
  // Runs all beside each other, or one after the other.
  static std::vector<CallOutcome> Run(Rig& rig, bool together) {
    std::vector<CallOutcome> outcomes;
    std::vector<Rig::Running> running;
    for (const CallRequest& request : Requests()) {
      running.push_back(rig.Submit(request));
      if (!together) running.back().sink->Wait().IgnoreError();
    }
    for (const Rig::Running& one : running) {
      const auto outcome = one.sink->Wait();
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      outcomes.push_back(outcome.value_or(CallOutcome{}));
    }
    rig.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
    return outcomes;
  }

  static constexpr uint64_t kBudgetPercent = 80;

  engine::TestFolder folder_;
  std::unique_ptr<engine::Model> resident_;
  std::unique_ptr<engine::Model> streamed_;
};

TEST_F(SpeculatorWindowsTest, AnswersAreThoseOfPlainDecoding) {
  const engine::WeightStreamStats weights = streamed_->weight_stats();
  ASSERT_GT(weights.pass_bytes, 0u);
  ASSERT_EQ(weights.lowest_pass_bytes, 0u) << "the lowest level is in memory";
  std::vector<CallOutcome> expected;
  {
    Rig plain(*resident_, {.max_batch = 4}, 4096);
    expected = Run(plain, /*together=*/false);
  }
  for (const bool always : {true, false}) {
    for (const bool together : {false, true}) {
      SCOPED_TRACE(testing::Message() << "always " << always << ", together " << together);
      Rig rig(*streamed_, Options(always, /*windows=*/true), 4096);
      const std::vector<CallOutcome> outcomes = Run(rig, together);
      int32_t grown = 0;
      for (size_t i = 0; i < outcomes.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(IdsOf(outcomes[i]), IdsOf(expected[i]));
        EXPECT_EQ(outcomes[i].usage.reused_tokens, expected[i].usage.reused_tokens);
        grown += outcomes[i].speculation.window_drafted;
        EXPECT_LE(outcomes[i].speculation.window_kept, outcomes[i].speculation.window_drafted);
      }
      EXPECT_GT(grown, 0);
    }
  }
}

// A low level that is always right, and windows that last until a tree is done.
TEST(SpeculatorWindowTest, AStepBeginsWithWhatGrewBeyondTheLastOne) {
  for (const bool windows : {false, true}) {
    SCOPED_TRACE(windows);
    engine::FakeModel model(kFakeVocab, 512);
    model.set_levels({20, 100});
    model.weights = {.buffer_bytes = 1, .pass_bytes = 1};
    SchedulerOptions options;
    options.speculation = {.enabled = true, .always = true, .windows = windows, .max_tree_rows = 9};
    Rig rig(model, options, 256, 512);
    CallRequest request = Rig::Ask("c", "a story", 100);
    request.answer.sampling.temperature = 0;
    request.speculation = policy::SpeculationMode::kPrefix;
    const auto outcome = rig.Submit(request).sink->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const SpeculationStats& stats = outcome->speculation;
    EXPECT_EQ(stats.accepted[kByPrefix], 100 - 1 - stats.target_passes);
    EXPECT_LE(stats.target_passes, 25) << "of 100 tokens; drafts that are interrupted are shorter";
    EXPECT_EQ(stats.window_drafted > 0, windows);
    if (windows) {
      EXPECT_GT(stats.window_kept, 60) << "nearly all tokens";
      EXPECT_LE(stats.window_kept, stats.window_drafted);
    } else {
      EXPECT_EQ(stats.window_kept, 0);
    }
  }
}

// A draft model whose trees are one token long unless they grew, which they do while it is lent the
// processors: what the model answers. Thread-safe by the scheduler's ways.
class LentDraft final : public Drafter {
 public:
  explicit LentDraft(std::vector<int32_t> answer) : answer_(std::move(answer)) {}
  policy::DraftOffer Follow(const DraftTask& /*task*/) override {
    return {.ready = true, .grows_in_windows = true, .pass_ms = 0.01};
  }
  DraftResult Grow(std::span<const DraftTask> tasks, const DraftTime& /*time*/) override {
    EXPECT_FALSE(growing_);
    EXPECT_EQ(tasks.size(), 1u);
    const DraftTask& task = tasks.front();
    const size_t length = task.session.tokens().size();
    if (prompt_ == 0) prompt_ = length - 1;
    const int32_t grown = std::exchange(grown_, 0);
    task.session.draft().stats().window_drafted += grown;
    task.session.draft().stats().window_kept += grown;
    int32_t parent = -1;
    size_t at = length - prompt_;
    for (int32_t more = grown + 1; more > 0 && at < answer_.size(); --more) {
      parent = task.drafts.step.tree.Add(parent, answer_[at++], 0.9,
                                         {policy::DraftSourceKind::kDraft, 3});
    }
    return {.came = true, .window_drafted = grown};
  }
  std::unique_ptr<StepWindows> GrowMeanwhile(std::span<const DraftTask> tasks) override {
    EXPECT_FALSE(std::exchange(growing_, true));
    EXPECT_EQ(tasks.size(), 1u);
    behind_prompt_ = behind_prompt_ || !tasks.front().session.decoding();
    return std::make_unique<Windows>(*this);
  }
  void Forget(uint64_t /*call_id*/) override {}
  // Whether it was lent the processors while the prompt was computed.
  bool behind_prompt() const { return behind_prompt_; }

 private:
  class Windows final : public StepWindows {
   public:
    explicit Windows(LentDraft& draft) : draft_(draft) {}
    ~Windows() override {
      EXPECT_FALSE(draft_.lent_) << "a step ends after it has gone on";
      EXPECT_TRUE(std::exchange(draft_.growing_, false));
    }
    bool Open(const std::atomic<bool>& /*arrived*/) override {
      EXPECT_FALSE(std::exchange(draft_.lent_, true));
      draft_.grown_ += 3;
      return true;
    }
    void Close() override { draft_.lent_ = false; }

   private:
    LentDraft& draft_;
  };

  const std::vector<int32_t> answer_;
  size_t prompt_ = 0;
  int32_t grown_ = 0;
  bool growing_ = false;
  bool lent_ = false;
  bool behind_prompt_ = false;
};

TEST(SpeculatorWindowTest, TheDraftModelIsLentTheProcessorsWhileAStepWaits) {
  CallRequest request = Rig::Ask("", "a story", 60);
  request.answer.sampling.temperature = 0;
  engine::FakeModel model(kFakeVocab, 512);
  model.weights = {.buffer_bytes = 1, .pass_bytes = 1};
  std::vector<int32_t> answer;
  {
    Rig plain(model, SchedulerOptions{}, 256, 512);
    const auto outcome = plain.Submit(request).sink->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    for (const engine::Sample& token : outcome->tokens) answer.push_back(token.id);
  }
  for (const bool windows : {false, true}) {
    SCOPED_TRACE(windows);
    LentDraft draft(answer);
    SchedulerOptions options;
    options.speculation = {
        .enabled = true, .always = true, .windows = windows, .max_tree_rows = 9, .draft = &draft};
    Rig rig(model, options, 256, 512);
    request.speculation = policy::SpeculationMode::kDraft;
    const auto outcome = rig.Submit(request).sink->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    std::vector<int32_t> ids;
    for (const engine::Sample& token : outcome->tokens) ids.push_back(token.id);
    EXPECT_EQ(ids, answer);
    EXPECT_EQ(outcome->speculation.window_drafted > 0, windows);
    EXPECT_EQ(outcome->speculation.window_kept, outcome->speculation.window_drafted);
    EXPECT_EQ(draft.behind_prompt(), windows);
    EXPECT_LE(outcome->speculation.target_passes, windows ? 15 : 30) << "of 60 tokens";
    EXPECT_GE(outcome->speculation.target_passes, windows ? 10 : 29);
  }
}

// A call that is cancelled in the second step of its prompt, whose KV stays for a retry.
TEST(SpeculatorWindowTest, NothingIsLookedUpOfAPromptThatWasNotAnswered) {
  const std::string alphabet = "abcdefghijklmnopqrstuvwxyz";
  engine::FakeModel model(kFakeVocab, 512, [](const std::vector<int32_t>& history) {
    const int32_t last = history.back();
    return last >= 'a' && last < 'z' ? last + 1 : 'a';
  });
  model.weights = {.buffer_bytes = 1, .pass_bytes = 1};
  absl::Notification reached, go;
  int steps = 0;
  model.on_forward = [&](const engine::Batch&) {
    if (++steps != 2) return;
    reached.Notify();
    go.WaitForNotification();
  };
  LentDraft draft({});
  SchedulerOptions options;
  options.speculation = {.enabled = true, .always = true, .max_tree_rows = 9, .draft = &draft};
  Rig rig(model, options, 256, 512);
  std::string text;
  for (int i = 0; i < 8; ++i) text += alphabet;
  const auto cancelled = rig.Submit(Rig::Ask("c", text));
  ASSERT_TRUE(reached.WaitForNotificationWithTimeout(kTestLimit));
  rig.scheduler.Cancel(cancelled.ticket);
  go.Notify();
  EXPECT_EQ(cancelled.sink->Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(draft.behind_prompt());
  rig.store.With(
      [](FakeStore::State& state) { EXPECT_FALSE(state.contexts["c"].resident.empty()); });

  CallRequest request = Rig::Ask("d", "hello", 20);
  request.speculation = policy::SpeculationMode::kLookup;
  const auto outcome = rig.Submit(request).sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->text, alphabet.substr(0, 20));
  EXPECT_EQ(outcome->speculation.accepted[0], 0);
}

TEST_F(SpeculatorWindowsTest, NothingGrowsWhereItIsSwitchedOffOrNothingWaits) {
  Rig off(*streamed_, Options(/*always=*/true, /*windows=*/false), 4096);
  for (const CallOutcome& outcome : Run(off, /*together=*/true)) {
    EXPECT_EQ(outcome.speculation.window_drafted, 0);
    EXPECT_EQ(outcome.speculation.window_kept, 0);
  }
  off.scheduler.Drain(absl::ZeroDuration());
  Rig in_memory(*resident_, Options(/*always=*/true, /*windows=*/true), 4096);
  for (const CallOutcome& outcome : Run(in_memory, /*together=*/true)) {
    EXPECT_EQ(outcome.speculation.window_drafted, 0);
  }
}

// A call that does not allow the source gets nothing of it, also beside one that does.
TEST_F(SpeculatorWindowsTest, OnlyCallsThatAllowItGrow) {
  Rig rig(*streamed_, Options(/*always=*/false, /*windows=*/true), 4096);
  std::vector<Rig::Running> running;
  for (CallRequest request : Requests()) {
    request.speculation =
        request.call_id % 2 == 0 ? policy::SpeculationMode::kOff : policy::SpeculationMode::kPrefix;
    running.push_back(rig.Submit(request));
  }
  for (size_t i = 0; i < running.size(); ++i) {
    const auto outcome = running[i].sink->Wait();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->speculation.window_drafted > 0, i % 2 == 0);
  }
}

}  // namespace
}  // namespace withy::serving
