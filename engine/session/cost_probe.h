// Measures what prefill and decode cost on this board, at start-up: the parameters that predictions
// begin with. Neighbours: the workers report it (GetWorkerInfo), the scheduler cuts prefills by it.
#pragma once

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"

namespace withy::engine {

// Microseconds, of the full model.
struct StepCost {
  double prefill_us_per_token = 0;
  double decode_us = 0;            // one step of one call
  double decode_us_per_extra = 0;  // what another call in the step adds
};

// Runs a short prefill and single steps of one and of four rows in private KV, some times each, and
// takes the fastest: a disturbance only ever adds. Takes half a second with a model of a gigabyte.
// Errors: those of Model::Forward.
absl::StatusOr<StepCost> MeasureCost(Model& model, Clock& clock);

}  // namespace withy::engine
