#include "elasticizer/train/tensor_file.h"

#include <filesystem>

#include "base/status.h"

namespace withy::train {

absl::Status SaveTensors(const std::string& path, const std::vector<torch::Tensor>& tensors) {
  try {
    torch::save(tensors, path + ".new");
  } catch (const c10::Error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": cannot be written: ", error.what_without_backtrace()));
  }
  std::error_code error;
  std::filesystem::rename(path + ".new", path, error);
  if (error) return absl::PermissionDeniedError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace withy::train
