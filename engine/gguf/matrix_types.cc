#include "engine/gguf/matrix_types.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr std::array<std::pair<std::string_view, GgmlType>, 6> kMatrixTypes = {{
    {"q8_0", GgmlType::kQ8_0},
    {"q4_0", GgmlType::kQ4_0},
    {"q4_1", GgmlType::kQ4_1},
    {"f16", GgmlType::kF16},
    {"bf16", GgmlType::kBF16},
    {"f32", GgmlType::kF32},
}};

}  // namespace

absl::StatusOr<MatrixType> FindMatrixType(std::string_view name) {
  if (name.empty() || name == "auto") return MatrixType();
  for (const auto& [known, type] : kMatrixTypes) {
    if (known == name) return MatrixType(type);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("type \"", ToAbsl(name),
                   "\" cannot be written; there are auto (as the model has it), q8_0, q4_0, q4_1, "
                   "f16, bf16 and f32"));
}

bool IsFloatType(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

bool IsMatrix(const TensorInfo& info) { return info.dims.size() == 2 && info.rows() > 1; }

}  // namespace withy::engine
