// Saves and loads a training run as one file. Files are replaced atomically, so a kill at any
// moment leaves a complete one.
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
  int64_t tokens = 0;  // trained on so far, without padding
  BatchPosition position;
};

// Errors: of the file system, naming `path`.
absl::Status SaveCheckpoint(const std::string& path, const Model& model, const Optimizer& optimizer,
                            const Progress& progress);

// Overwrites the tensors of model and optimizer; a null `optimizer` loads only weights. Errors:
// NotFound (no such file); InvalidArgument if it is damaged or has another shape, naming file and
// tensor.
absl::Status LoadCheckpoint(const std::string& path, Model& model, Optimizer* optimizer,
                            Progress* progress);

}  // namespace withy::train
