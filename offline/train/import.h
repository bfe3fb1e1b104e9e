// The weights of a GGUF file as the first weights of a training run: export.h the other way round.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "offline/train/model.h"

namespace withy::train {

// Sets every parameter of `model` from the file's tensor of its name; weights may be stored in any
// type that GgufFile reads. Errors: as GgufFile::Open(); NotFound and InvalidArgument naming a
// tensor that is missing or of another shape.
absl::Status ImportGguf(const std::string& path, Model& model);

}  // namespace withy::train
