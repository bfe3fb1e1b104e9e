// Saves and loads a training run as one file, written beside and renamed over, so that a kill at
// any moment leaves a whole one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "offline/train/batches.h"
#include "offline/train/model.h"
#include "offline/train/optimizer.h"

namespace withy::train {

struct Progress {
  int64_t step = 0;
  int64_t tokens = 0;  // trained on so far, padding not counted
  BatchPosition position;
};

// Errors: from the disk, naming `path`.
absl::Status SaveCheckpoint(const std::string& path, const Model& model, const Optimizer& optimizer,
                            const Progress& progress);

// Overwrites the model's and the optimizer's tensors; `optimizer` may be null when only weights are
// wanted. Errors: NotFound when there is no such file; InvalidArgument when it is damaged or of
// another shape, naming the file and tensor.
absl::Status LoadCheckpoint(const std::string& path, Model& model, Optimizer* optimizer,
                            Progress* progress);

}  // namespace withy::train
