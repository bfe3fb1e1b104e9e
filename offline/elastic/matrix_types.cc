#include "offline/elastic/matrix_types.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace withy::elastic {
using engine::GgmlType;

std::string DescribeTypes(const engine::GgufFile& source, MatrixType type) {
  std::set<std::string> names;  // types of the layers' matrices
  bool quantised = false;
  for (const engine::TensorInfo& info : source.tensors()) {
    if (!info.name.starts_with("blk.") || !IsMatrix(info)) continue;
    names.emplace(engine::TypeName(info.type));
    quantised = quantised || !engine::IsFloatType(info.type);
  }
  const std::string from = absl::StrJoin(names, ", ");
  constexpr char kBest[] = "; start from F32, F16 or BF16 for the best result";
  if (!type.has_value() && quantised) {
    return absl::StrCat("matrices of layers stay as they are (", from,
                        "), but ffn_down, whose columns move, becomes Q8_0 (--type names another)");
  }
  std::string text =
      absl::StrCat("matrices of layers are written as ",
                   ToAbsl(engine::TypeName(type.value_or(GgmlType::kQ8_0))), " from ", from,
                   type.has_value() ? "" : " (--type names another)");
  if (!quantised) return text;
  return absl::StrCat(text, ". Warning: ", source.path(),
                      " is already quantised: its weights are quantised a second time", kBest);
}

}  // namespace withy::elastic
