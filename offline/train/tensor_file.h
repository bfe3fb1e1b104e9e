// Tensors in one file that is there whole or not at all. Neighbours: checkpoint.h keeps whole runs;
// elastic/ and tlm/ keep single results with this.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace withy::train {

// Written beside, synced and renamed over `path`. Errors: those of WriteWhole (base/files.h).
absl::Status SaveTensors(const std::string& path, const std::vector<torch::Tensor>& tensors);

}  // namespace withy::train
