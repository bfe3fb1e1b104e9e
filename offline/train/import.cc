#include "offline/train/import.h"

#include <span>

#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"

namespace withy::train {

absl::Status ImportGguf(const std::string& path, Model& model) {
  torch::NoGradGuard no_grad;
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  for (const Parameter& parameter : model.parameters()) {
    WITHY_ASSIGN_OR_RETURN(const engine::TensorInfo* tensor, file.GetTensor(parameter.name));
    const int64_t cols = parameter.value.size(-1);
    const int64_t rows = parameter.value.numel() / cols;
    if (tensor->cols() != cols || tensor->rows() != rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", parameter.name, " is [", tensor->rows(), ", ",
                       tensor->cols(), "], the model to train has [", rows, ", ", cols, "]"));
    }
    torch::Tensor values = torch::empty(parameter.value.sizes(), torch::kFloat32);
    WITHY_RETURN_IF_ERROR(engine::Dequantize(
        tensor->type, file.Data(*tensor),
        std::span<float>(values.data_ptr<float>(), static_cast<size_t>(values.numel()))));
    parameter.value.copy_(values);
  }
  return absl::OkStatus();
}

}  // namespace withy::train
