#include "offline/train/tensor_file.h"

#include <sstream>

#include "base/files.h"
#include "base/status.h"

namespace withy::train {

absl::Status SaveTensors(const std::string& path, const std::vector<torch::Tensor>& tensors) {
  // Serialises to memory first, because LibTorch's file writer does not report errors.
  std::ostringstream bytes;
  torch::save(tensors, bytes);
  return WriteAtomically(path, bytes.view());
}

}  // namespace withy::train
