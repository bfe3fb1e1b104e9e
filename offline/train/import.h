// Loads the weights of a GGUF file as initial weights of a training run; the inverse of export.h.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "offline/train/model.h"

namespace withy::train {

// Sets every parameter of `model` from the file's tensor of the same name; any type that GgufFile
// reads is allowed. Errors: as GgufFile::Open(); NotFound and InvalidArgument naming a tensor that
// is missing or has another shape.
absl::Status ImportGguf(const std::string& path, Model& model);

}  // namespace withy::train
