// Stores tensors in one file, atomically. Neighbours: checkpoint.h saves whole runs; elastic/ and
// tlm/ save single results.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace withy::train {

// Replaces `path` atomically. Errors: those of WriteAtomically (base/files.h).
absl::Status SaveTensors(const std::string& path, const std::vector<torch::Tensor>& tensors);

}  // namespace withy::train
