#include "offline/elastic/matrix_types.h"

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "engine/gguf/quants.h"

namespace withy::elastic {
namespace {

using engine::GgmlType;

constexpr std::array<std::pair<std::string_view, GgmlType>, 6> kTypes = {{
    {"q8_0", GgmlType::kQ8_0},
    {"q4_0", GgmlType::kQ4_0},
    {"q4_1", GgmlType::kQ4_1},
    {"f16", GgmlType::kF16},
    {"bf16", GgmlType::kBF16},
    {"f32", GgmlType::kF32},
}};

bool IsFloat(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

std::string Name(GgmlType type) { return std::string(engine::TypeName(type)); }

}  // namespace

absl::StatusOr<MatrixType> FindMatrixType(std::string_view name) {
  if (name.empty() || name == "auto") return MatrixType();
  for (const auto& [known, type] : kTypes) {
    if (known == name) return MatrixType(type);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("type \"", ToAbsl(name),
                   "\" cannot be written; there are auto (as the model has it), q8_0, q4_0, q4_1, "
                   "f16, bf16 and f32"));
}

GgmlType NearestType(GgmlType source) {
  if (!IsFloat(source) && engine::CanQuantize(source)) return source;
  return source == GgmlType::kQ4_K ? GgmlType::kQ4_1 : GgmlType::kQ8_0;
}

bool IsMatrix(const engine::TensorInfo& info) { return info.dims.size() == 2 && info.rows() > 1; }

GgmlType TypeOf(const engine::TensorInfo& info, MatrixType type, bool moved) {
  if (!IsMatrix(info)) return info.type;
  if (type.has_value()) return *type;
  if (!moved && !IsFloat(info.type)) return info.type;
  return NearestType(info.type);
}

std::string DescribeTypes(const engine::GgufFile& source, MatrixType type) {
  std::map<std::pair<GgmlType, GgmlType>, int> pairs;  // types of the layers' matrices: from, to
  for (const engine::TensorInfo& info : source.tensors()) {
    if (!info.name.starts_with("blk.") || !IsMatrix(info)) continue;
    ++pairs[{info.type, TypeOf(info, type, true)}];
  }
  std::vector<std::string> said;
  bool quantised = false;
  bool same = true;
  for (const auto& [from_to, count] : pairs) {
    const auto [from, to] = from_to;
    said.push_back(from == to ? absl::StrCat(Name(to), " as they are")
                              : absl::StrCat(Name(to), " from ", Name(from)));
    if (pairs.size() > 1) said.back() += absl::StrCat(" (", count, ")");
    quantised = quantised || !IsFloat(from);
    same = same && (from == to || IsFloat(from));
  }
  std::string text = absl::StrCat("matrices of layers are written as ", absl::StrJoin(said, ", "),
                                  type.has_value() ? "" : " (--type names another)");
  if (!quantised) return text;
  return absl::StrCat(
      text, ". Warning: ", source.path(), " is already quantised: ",
      same ? "ffn_down, whose columns move, is quantised a second time; all other blocks "
             "are copied"
           : "its weights are quantised a second time",
      "; start from F32, F16 or BF16 for the best result");
}

}  // namespace withy::elastic
