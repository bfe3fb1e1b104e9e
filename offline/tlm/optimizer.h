// AdamW over some tensors, and the loop around it: a rate that warms up and falls, gradients
// clipped, progress kept on disk. Neighbours: score_stage.cc, decision_stage.cc give the loss.
// Source: Loshchilov and Hutter 2019.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "offline/corpus/rng.h"
#include "offline/tlm/stages.h"

namespace withy::tlm {

struct Trained {
  torch::Tensor value;
  torch::Tensor mask;  // undefined: all of it; else multiplied with the gradient
};

// Runs options.steps steps of `loss`, which gets random numbers that depend on seed and step alone;
// goes on from options.progress_file when there is one. The tensors require no gradient afterwards.
// Errors: CANCELLED when options.report says so; FAILED_PRECONDITION for a progress file of another
// shape; those of the disk.
absl::Status Train(std::vector<Trained> trained, const StageOptions& options,
                   const std::function<torch::Tensor(corpus::Rng& rng)>& loss);

}  // namespace withy::tlm
