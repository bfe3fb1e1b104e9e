#include "offline/elastic/matrix_types.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace withy::elastic {
namespace {

using engine::GgmlType;

std::string Name(GgmlType type) { return std::string(engine::TypeName(type)); }

}  // namespace

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
    quantised = quantised || !engine::IsFloatType(from);
    same = same && (from == to || engine::IsFloatType(from));
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
