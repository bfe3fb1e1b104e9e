// What a worker says of its model and of itself, as the policies take it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
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

// The times of a calibrated level; none where it is not.
inline std::optional<CostParameters> MeasuredOf(const v1::LevelCost& level) {
  if (level.decode_us() <= 0 || level.prefill().empty()) return std::nullopt;
  CostParameters cost;
  cost.decode_us_per_token = level.decode_us();
  cost.decode_us_per_context_token = level.decode_us_per_context_token();
  cost.decode_us_per_extra_row = level.decode_us_per_extra_row();
  cost.prefill_us_per_context_token = level.prefill_us_per_context_token();
  for (const v1::PrefillTime& time : level.prefill()) {
    cost.prefill.push_back({static_cast<double>(time.tokens()), time.us()});
  }
  cost.prefill_us_per_token = cost.prefill.back().us / cost.prefill.back().tokens;
  return cost;
}

// What depth adds to a level that is not measured otherwise; none where that is not known either.
inline std::optional<DepthCost> DepthOf(const v1::LevelCost& level) {
  const DepthCost depth{level.prefill_us_per_context_token(), level.decode_us_per_context_token()};
  if (depth.prefill_us <= 0 && depth.decode_us <= 0) return std::nullopt;
  return depth;
}

// Of the full model.
inline CostParameters CostOf(const v1::GetWorkerInfoResponse& worker) {
  const v1::CostModel& cost = worker.cost();
  if (!cost.levels().empty()) {
    if (auto measured = MeasuredOf(cost.levels().rbegin()[0])) return *std::move(measured);
  }
  CostParameters full{cost.prefill_us_per_token(), cost.decode_us_per_token(),
                      cost.decode_us_per_extra_row(), cost.decode_us_per_context_token()};
  full.prefill_us_per_context_token = cost.prefill_us_per_context_token();
  return full;
}

inline std::vector<LevelCost> LevelsOf(const v1::GetWorkerInfoResponse& worker) {
  std::vector<LevelCost> levels;
  for (const v1::LevelCost& level : worker.cost().levels()) {
    levels.push_back({level.percent(), static_cast<double>(level.weight_bytes()),
                      static_cast<double>(level.flops_per_token()), MeasuredOf(level),
                      DepthOf(level)});
  }
  return levels;
}

}  // namespace withy::orchestrator
