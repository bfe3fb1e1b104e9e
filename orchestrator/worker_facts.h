// What a worker says of its model and of itself, as the policies take it. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "orchestrator/calls.h"
#include "orchestrator/latency_model.h"
#include "orchestrator/validate.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::orchestrator {

inline ModelLimits LimitsOf(Lane lane, const v1::ModelDescription& model) {
  ModelLimits limits;
  limits.context_length = model.context_length();
  limits.vocabulary = model.vocabulary();
  limits.levels_percent.assign(model.levels_percent().begin(), model.levels_percent().end());
  if (limits.levels_percent.empty()) limits.levels_percent = {100};
  limits.keeps_contexts = lane == Lane::kTarget;
  return limits;
}

inline CostParameters CostOf(const v1::GetWorkerInfoResponse& worker) {
  return {worker.cost().prefill_us_per_token(), worker.cost().decode_us_per_token(),
          worker.cost().decode_us_per_extra_row()};
}

inline std::vector<LevelCost> LevelsOf(const v1::GetWorkerInfoResponse& worker) {
  std::vector<LevelCost> levels;
  for (const v1::LevelCost& level : worker.cost().levels()) {
    levels.push_back({level.percent(), static_cast<double>(level.weight_bytes()),
                      static_cast<double>(level.flops_per_token())});
  }
  return levels;
}

}  // namespace withy::orchestrator
