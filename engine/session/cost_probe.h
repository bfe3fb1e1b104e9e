// Measures the cost of prefill and decode on this board at start; predictions begin with these
// values. Neighbours: the workers report it (GetWorkerInfo), the scheduler sizes prefill pieces by
// it.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/session/level_times.h"

namespace withy::engine {

// Microseconds that each context token adds to a later row.
struct DepthCost {
  double prefill_us = 0;  // per prompt row, in a batch of many
  double decode_us = 0;   // per decode step
};

// Microseconds of the full model with an empty context.
struct StepCost {
  double prefill_us_per_token = 0;
  double decode_us = 0;            // one step with one call
  double decode_us_per_extra = 0;  // added by another call in the step
  // A few tokens take nearly as long as one. Ascending. Beyond the last but one entry every further
  // token takes prefill_us_per_token. Empty: not measured.
  std::vector<PrefillTime> prefill = {};
  // Steps of one call with a token tree, by its rows. Empty: not measured.
  std::vector<PrefillTime> trees = {};
  DepthCost depth = {};
  DepthCost lowest_level_depth =
      {};  // of the model's lowest level; the only level of a plain model
};

// Interpolates linearly in per cent between the lowest and the full level.
DepthCost DepthCostOf(const StepCost& cost, int32_t lowest_percent, int32_t percent);

// Runs a short prefill and single steps of one and of four rows several times in private KV and
// takes the fastest, because disturbances only add time. Measures prefill and decode again with a
// context of up to 2,048 tokens, whose KV is copied, not computed. Takes three quarters of a second
// for a model of one gigabyte. Errors: those of Model::Forward.
absl::StatusOr<StepCost> MeasureCost(Model& model, Clock& clock);

}  // namespace withy::engine
