// Calls whose decode steps compute token trees, beside others and with prompts between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/model/testing.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

// Chains and branches of what each call will answer, now and then wrong. Thread-safe.
class KnowingDraft final : public Drafter {
 public:
  explicit KnowingDraft(int32_t vocab) : vocab_(static_cast<uint32_t>(vocab)) {}

  void Know(uint64_t call_id, std::vector<int32_t> answer) {
    absl::MutexLock lock(&mutex_);
    answers_[call_id] = std::move(answer);
    prompts_.erase(call_id);
  }

  policy::DraftOffer Follow(const DraftTask& /*task*/) override {
    return {.ready = true, .pass_ms = 0.01};
  }
  DraftResult Grow(std::span<const DraftTask> tasks, const DraftTime& /*time*/) override {
    absl::MutexLock lock(&mutex_);
    most_together_ = std::max(most_together_, tasks.size());
    for (const DraftTask& task : tasks) {
      policy::DraftTree tree;
      DraftOne(task, &tree);
      task.drafts.step.tree.Merge(tree);
    }
    return {.came = true};
  }
  std::unique_ptr<StepWindows> GrowMeanwhile(std::span<const DraftTask> /*tasks*/) override {
    return nullptr;
  }
  void Forget(uint64_t /*call_id*/) override {}
  void DraftOne(const DraftTask& task, policy::DraftTree* tree)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<int32_t>& answer = answers_[task.call_id];
    const size_t length = task.session.tokens().size();
    // The first draft comes behind the first token.
    const size_t prompt = prompts_.emplace(task.call_id, length - 1).first->second;
    constexpr policy::DraftOrigin kOrigin{policy::DraftSourceKind::kDraft, 3};
    int32_t parent = -1;
    const size_t depth = random_() % 6;
    for (size_t at = length - prompt;
         at < answer.size() && tree->size() < 2 * static_cast<int>(depth); ++at) {
      tree->Add(parent, static_cast<int32_t>(random_() % vocab_), 0.3, kOrigin);
      const bool wrong = random_() % 8 == 0;
      parent = tree->Add(parent, wrong ? static_cast<int32_t>(random_() % vocab_) : answer[at], 0.9,
                         kOrigin);
    }
    drafted_ += tree->empty() ? 0 : 1;
  }
  int drafted() const {
    absl::MutexLock lock(&mutex_);
    return drafted_;
  }
  size_t most_together() const {
    absl::MutexLock lock(&mutex_);
    return most_together_;
  }

 private:
  const uint32_t vocab_;
  mutable absl::Mutex mutex_;
  std::mt19937 random_ ABSL_GUARDED_BY(mutex_){3};
  std::map<uint64_t, std::vector<int32_t>> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, size_t> prompts_ ABSL_GUARDED_BY(mutex_);  // tokens of each call's prompt
  int drafted_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t most_together_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::vector<int32_t> IdsOf(const CallOutcome& outcome) {
  std::vector<int32_t> ids;
  for (const engine::Sample& token : outcome.tokens) ids.push_back(token.id);
  return ids;
}

// The attention of accepted rows counts as that of plain ones, and that of others does not.
void ExpectSameDensities(FakeStore& expected, FakeStore& stored) {
  using Chunks = std::map<std::string, std::vector<ResidentChunk>>;
  const auto chunks_of = [](FakeStore& store) {
    return store.With([](FakeStore::State& state) {
      Chunks chunks;
      for (const auto& [id, context] : state.contexts) chunks[id] = context.resident;
      return chunks;
    });
  };
  const Chunks want = chunks_of(expected);
  Chunks got = chunks_of(stored);
  for (const auto& [id, chunks] : want) {
    SCOPED_TRACE(id);
    ASSERT_EQ(got[id].size(), chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      const ChunkName &name = got[id][i].name, &plain = chunks[i].name;
      EXPECT_EQ(name.density_rows, plain.density_rows) << "chunk " << i;
      EXPECT_NEAR(name.density, plain.density, 1e-4f * plain.density) << "chunk " << i;
    }
  }
}

std::vector<CallRequest> Requests(int turn) {
  std::vector<CallRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    const bool stateless = i == 4;
    requests.push_back(Rig::Ask(stateless ? "" : "c" + std::to_string(i),
                                "prompt " + std::string(7 * i, 'x') + std::to_string(turn),
                                20 + static_cast<int32_t>(3 * i)));
    requests.back().call_id = i + 1;
    if (i % 2 == 1) {
      requests.back().answer.sampling.temperature = 1.0f;
      requests.back().answer.sampling.seed = 7 * i;
    }
    if (i == 2) requests.back().turn.deadline_ns = 1;
  }
  return requests;
}

TEST(DraftedCallsTest, AnswersAreThoseOfPlainDecoding) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = engine::OpenTiny(
      folder, engine::WriteTiny(folder, engine::TinyShape(), engine::GgmlType::kQ8_0));
  KnowingDraft draft(model->info().vocab_size);
  SchedulerOptions options;
  options.max_batch = 4;
  Rig plain(*model, options, 4096);
  std::vector<std::vector<CallOutcome>> expected;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<CallOutcome>& outcomes = expected.emplace_back();
    for (const CallRequest& request : Requests(turn)) {
      const auto outcome = plain.Submit(request).sink->Wait();
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      outcomes.push_back(*outcome);
    }
  }
  plain.scheduler.Drain(absl::ZeroDuration());

  options.speculation = {.enabled = true, .always = true, .draft = &draft};
  Rig drafted(*model, options, 4096);
  for (size_t turn = 0; turn < expected.size(); ++turn) {
    std::vector<Rig::Running> running;
    for (const CallRequest& request : Requests(static_cast<int>(turn))) {
      draft.Know(request.call_id, IdsOf(expected[turn][request.call_id - 1]));
      running.push_back(drafted.Submit(request));
    }
    for (size_t i = 0; i < running.size(); ++i) {
      SCOPED_TRACE(i);
      const auto outcome = running[i].sink->Wait();
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_EQ(IdsOf(*outcome), IdsOf(expected[turn][i]));
      EXPECT_EQ(running[i].sink->text(), expected[turn][i].text) << "told token by token";
      EXPECT_EQ(running[i].sink->tokens(), static_cast<int>(outcome->tokens.size()));
      EXPECT_EQ(outcome->usage.reused_tokens, expected[turn][i].usage.reused_tokens);
    }
  }
  EXPECT_GT(draft.drafted(), 0);
  drafted.store.With([](FakeStore::State& state) { EXPECT_EQ(state.faults, 0); });
  ExpectSameDensities(plain.store, drafted.store);
}

// Under control, too, where every call can afford it.
TEST(DraftedCallsTest, CallsThatShareAStepAreDraftedTogether) {
  const engine::TestFolder folder;
  const std::unique_ptr<engine::Model> model = engine::OpenTiny(
      folder, engine::WriteTiny(folder, engine::TinyShape(), engine::GgmlType::kQ8_0));
  for (const bool always : {true, false}) {
    SCOPED_TRACE(always);
    KnowingDraft draft(model->info().vocab_size);
    SchedulerOptions options;
    options.max_batch = 4;
    options.speculation = {.enabled = true, .always = always, .draft = &draft};
    Rig rig(*model, options, 4096);
    const absl::Time end = absl::Now() + kTestLimit;
    // How many calls run at once is up to the machine.
    while (draft.most_together() < 2 && absl::Now() < end) {
      std::vector<Rig::Running> running;
      for (CallRequest request : Requests(0)) {
        draft.Know(request.call_id, {});
        request.answer.max_tokens = 60;
        request.speculation = policy::SpeculationMode::kDraft;
        running.push_back(rig.Submit(request));
      }
      for (const Rig::Running& one : running) EXPECT_TRUE(one.sink->Wait().ok());
    }
    EXPECT_GE(draft.most_together(), 2u);
  }
}

}  // namespace
}  // namespace withy::serving
