// How well the latency of the next token is predicted: passes of random depths and batches, each
// predicted before it runs by what those before it taught. Neighbour: policy/board/board_speed.h.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/profiler/profiler_figures.h"
#include "engine/model/model.h"

namespace withy::bench {

inline constexpr int32_t kMostPredictedCalls = 4;  // in a pass

// The passes of `prompts` prompts, of which the second half is held out, in order: random calls,
// depths and tokens. Errors: those of Model::Forward.
absl::StatusOr<std::vector<PredictedPass>> MeasurePrediction(engine::Model& model, int prompts,
                                                             uint32_t seed);

}  // namespace withy::bench
