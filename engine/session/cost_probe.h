// Measures what prefill and decode cost on this board, at start-up: the parameters that predictions
// begin with. Neighbours: the workers report it (GetWorkerInfo), the scheduler cuts prefills by it.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/session/level_times.h"

namespace withy::engine {

// Microseconds that each token of a context adds to a row that stands behind it.
struct DepthCost {
  double prefill_us = 0;  // to a row of a prompt, of many at once
  double decode_us = 0;   // to a decode step
};

// Microseconds, of the full model in an empty context.
struct StepCost {
  double prefill_us_per_token = 0;
  double decode_us = 0;            // one step of one call
  double decode_us_per_extra = 0;  // what another call in the step adds
  // A few tokens take nearly as long as one. Ascending; beyond the last but one every token takes
  // prefill_us_per_token. Empty: not measured.
  std::vector<PrefillTime> prefill = {};
  DepthCost depth = {};
  DepthCost lowest_level_depth = {};  // of the model's lowest level; a plain model's only one
};

// Of a level between the lowest and the full one, in proportion to its per cent.
DepthCost DepthCostOf(const StepCost& cost, int32_t lowest_percent, int32_t percent);

// Runs a short prefill and single steps of one and of four rows in private KV, some times each, and
// takes the fastest: a disturbance only ever adds. Prefill and decode are measured again behind a
// context of up to 2,048 tokens, whose KV is copied, not computed. Takes three quarters of a second
// with a model of a gigabyte. Errors: those of Model::Forward.
absl::StatusOr<StepCost> MeasureCost(Model& model, Clock& clock);

}  // namespace withy::engine
