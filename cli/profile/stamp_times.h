// Measures passes of a model on the GPU twice at once: by the stamps that its kernels write, and by
// CUPTI. Neighbours: calibrate.cc asks for it, engine/cuda/stamp_check.h compares.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/gpu/cupti.h"
#include "engine/cuda/stamp_check.h"
#include "engine/model/model.h"

namespace withy::cli {

struct StampTimes {
  std::string pass = {};  // "decode" (steps of one row), "prefill" (64 rows)
  std::vector<engine::cuda::StampedOp> ops = {};
};

// Opens the model for it; kernel_observer of `options` is set here. Errors: those of opening;
// FAILED_PRECONDITION if the model is computed on the CPU, or if CUPTI's records never were those
// of the passes; CANCELLED (`cancel` became true).
absl::StatusOr<std::vector<StampTimes>> MeasureStamps(const std::string& path,
                                                      engine::ModelOptions options,
                                                      engine::cuda::Cupti& cupti,
                                                      const std::atomic<bool>* cancel);

// A table for people; empty without times.
std::string StampTable(const std::vector<StampTimes>& times);

}  // namespace withy::cli
