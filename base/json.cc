#include "base/json.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/stack_left.h"
#include "base/status.h"

namespace withy {
namespace {

// What nlohmann's writer, the largest of its recursions, takes for a level.
constexpr size_t kBytesPerLevel = kFrameScale * 320;

template <typename Json>
absl::Status Parse(std::string_view text, Json* json, int max_depth) {
  const int depth = JsonDepth(text);
  if (depth > max_depth) {
    return absl::InvalidArgumentError(absl::StrCat("is nested ", depth, " levels deep: at most ",
                                                   max_depth, "; make it flatter"));
  }
  if (!StackAllows(static_cast<size_t>(depth) * kBytesPerLevel)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is nested ", depth,
                     " levels deep, for which the stack of this thread is too "
                     "small: make it flatter"));
  }
  *json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json->is_discarded()) return absl::InvalidArgumentError("is not valid JSON in UTF-8");
  return absl::OkStatus();
}

}  // namespace

int JsonDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

absl::Status ParseJson(std::string_view text, OrderedJson* json, int max_depth) {
  return Parse(text, json, max_depth);
}

absl::Status ParseJson(std::string_view text, nlohmann::json* json, int max_depth) {
  return Parse(text, json, max_depth);
}

}  // namespace withy
