// Hands out what comes of a computed step: tokens to their calls, progress to those that wait, its
// time to what is learnt. Neighbours: step_runner.h computes steps and goes on with the calls;
// session.h takes logits; call_lifecycle.h is told of calls that fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "policy/board/step_learner.h"
#include "serving/call/call_state.h"
#include "serving/call/step_batch.h"
#include "serving/call/worker_metrics.h"
#include "serving/speculation/speculator.h"

namespace withy::serving {

// Told by StepRunner::Step and StepTokens.
class StepResults {
 public:
  virtual ~StepResults() = default;
  // Rows of the call were computed, and its tokens told: it goes on, or has nothing left to
  // compute.
  virtual void OnComputed(Call& call) = 0;
  // The engine or the sampler refused the call. Afterwards the call is gone.
  virtual void OnRefused(Call& call, const absl::Status& status) = 0;
};

// Index of a call's level among the model's; none: the model has no such level.
std::optional<size_t> LevelOf(const engine::ModelInfo& model, const Call& call);

// For the engine thread. Everything passed in is borrowed.
class StepTokens {
 public:
  StepTokens(engine::Model& model, policy::StepLearner& learner, Speculator& speculator,
             StepResults& results, Clock& clock, WorkerMetrics& metrics);

  // Gives each call of a computed batch its tokens or its progress. `logits`: [rows that want
  // logits, vocabulary]. Returns the calls that go on: all but those that failed, which are gone.
  std::vector<Call*> HandOut(const StepBatch& batch, std::span<const float> logits);

 private:
  bool TakeTokens(Call& call, std::span<const float> logits);

  engine::Model& model_;
  policy::StepLearner& learner_;
  Speculator& speculator_;
  StepResults& results_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  const size_t vocab_;
};

}  // namespace withy::serving
