// AdamW and its training loop: a rate with warm-up and decay, gradient clipping, progress saved to
// disk. Neighbours: score_stage.cc, decision_stage.cc define the loss.
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
  torch::Tensor mask;  // undefined: everything; else multiplied with the gradient
};

// Runs options.steps steps of `loss`, whose random numbers depend only on seed and step. Resumes
// from options.progress_file if it exists. Afterwards the tensors require no gradient. Errors:
// CANCELLED if options.report returns false; FAILED_PRECONDITION for a progress file of another
// shape; those of the file system.
absl::Status Train(std::vector<Trained> trained, const StageOptions& options,
                   const std::function<torch::Tensor(corpus::Rng& rng)>& loss);

}  // namespace withy::tlm
