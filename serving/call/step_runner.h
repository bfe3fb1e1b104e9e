// The engine thread's steps: plans one, computes it, leaves it for an urgent one and resumes it,
// sets up the next one. Neighbours: policy/step/step_plan.h decides; session.h makes rows;
// step_tokens.h hands out what comes of them; call_lifecycle.h is told which calls are done or have
// failed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "policy/board/step_learner.h"
#include "policy/call/pace.h"
#include "policy/call/prompt_level.h"
#include "policy/step/step_plan.h"
#include "serving/call/call_state.h"
#include "serving/call/scheduler_options.h"
#include "serving/call/step_batch.h"
#include "serving/call/step_tokens.h"
#include "serving/call/task_inbox.h"
#include "serving/call/worker_metrics.h"
#include "serving/speculation/speculator.h"

namespace withy::serving {

struct StepRunnerOptions {
  int32_t max_batch = 8;
  policy::StepLearnerOptions learner;
  int32_t rows_without_answers = policy::kRowsWithoutAnswers;  // of prompts, in a step
  std::vector<policy::LevelPace> levels;                       // as the model's
  SpeculationOptions speculation = {};
};

// For the engine thread. Everything passed in is borrowed. Always: rows are computed only for calls
// in CallPhase::kRunning; the blocks of a step under way stay where they are.
class StepRunner {
 public:
  StepRunner(engine::Model& model, const StepRunnerOptions& options, const Calls& calls,
             TaskInbox& inbox, StepResults& results, Clock& clock, WorkerMetrics& metrics);

  // Plans and computes a step, or goes on with the one under way; returns early when the inbox is
  // interrupted. False: there was nothing to compute before something arrives in the inbox.
  bool Step();

  bool IsUnderWay(const Call& call) const;
  // Whether the step under way has rows of the call and of others.
  bool SharesStepUnderWay(const Call& call) const;
  // Runs `task` on the engine thread once no step is under way.
  void Defer(Task task) { deferred_.push_back(std::move(task)); }
  // Gives up the step under way if it has rows of the call.
  void AbandonStepOf(const Call& call);
  void AbandonStep() { under_way_ = nullptr; }
  Speculator& speculator() { return speculator_; }

 private:
  bool Preempt();
  bool StreamsWeights() const { return model_.weight_stats().streams(); }
  std::unique_ptr<StepBatch> PlanBatch();
  policy::StepCall StepCallOf(const Call& call) const;
  void FlushThoseWhoWait(const StepBatch& next);

  bool StandsStill();
  void EndKvWait(StepBatch& batch);
  bool Compute(StepBatch& batch, std::vector<float>& logits, const std::atomic<bool>* interrupt);
  bool ComputePass(StepBatch& batch, const std::atomic<bool>* interrupt);
  void Refuse(StepBatch& batch, const absl::Status& status);
  bool Begin(StepBatch& batch, std::vector<float>& logits);
  bool RunPass(StepBatch& batch, const std::atomic<bool>* interrupt, double until);
  void GrowMeanwhile(StepBatch& batch, const std::atomic<bool>& arrived);
  bool NeedsWatch(const StepBatch& batch) const;
  bool RestartsAtLowerLevel(StepBatch& batch);

  void Continue(std::span<Call* const> calls);
  void DraftNext(std::span<Call* const> calls);
  void LowerLevel(Call& call, size_t from, size_t to);

  engine::Model& model_;
  const std::vector<policy::LevelPace> levels_;
  const Calls& calls_;
  TaskInbox& inbox_;
  StepResults& results_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  const size_t vocab_;
  policy::StepLearner learner_;
  const int32_t rows_without_answers_;
  Speculator speculator_;
  StepTokens tokens_;
  std::unique_ptr<StepBatch> under_way_;  // begun and not over
  std::vector<Task> deferred_;
  std::vector<float> logits_;             // [rows that want logits, vocab], of the step under way
  std::vector<float> preempting_logits_;  // the same of a step in its middle
};

}  // namespace withy::serving
