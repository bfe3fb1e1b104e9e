// How well the latency of the next token is predicted: passes of random depths and batches, each
// predicted before it runs by what those before it taught. Neighbour: policy/board_speed.h.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"

namespace withy::bench {

struct PredictionErrors {
  std::vector<double> held_out;  // |predicted / measured - 1| of decode passes of held-out prompts
  uint32_t changes = 0;          // times that the board's speed was found to have changed
};

// `prompts` prompts, of which the second half is held out. Errors: those of Model::Forward.
absl::StatusOr<PredictionErrors> MeasurePrediction(engine::Model& model, int prompts,
                                                   uint32_t seed);

}  // namespace withy::bench
