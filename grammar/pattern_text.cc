#include "grammar/pattern_text.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace withy::grammar {
namespace {

constexpr size_t kMostPatternBytes = 64 << 10;

// The end of the class, the escape or the character at `at`.
size_t EndOfAtom(std::string_view pattern, size_t at) {
  if (pattern[at] == '\\') return std::min(at + 2, pattern.size());
  if (pattern[at] != '[') return at + 1;
  for (size_t i = at + 1; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
    } else if (pattern[i] == ']') {
      return i + 1;
    }
  }
  return pattern.size();
}

// The number of "{n,}" at `at`; empty: something else is there.
std::string_view LeastCount(std::string_view pattern, size_t at) {
  size_t end = at + 1;
  while (end < pattern.size() && pattern[end] >= '0' && pattern[end] <= '9') ++end;
  if (pattern[at] != '{' || pattern.substr(std::min(end, pattern.size()), 2) != ",}") return {};
  return pattern.substr(at + 1, end - at - 1);
}

}  // namespace

std::optional<std::string> WithExactRepetitions(std::string_view pattern) {
  std::string text;
  std::vector<size_t> open;     // where the groups begin in `text` that are not closed
  std::optional<size_t> group;  // that ends here
  for (size_t at = 0; at < pattern.size();) {
    const std::optional<size_t> before = group;
    group.reset();
    const std::string_view count = LeastCount(pattern, at);
    if (before.has_value() && pattern[at] == '?') {
      text += "{0,1}";
      ++at;
    } else if (before.has_value() && !count.empty()) {
      const std::string again = text.substr(*before);
      text += '{';
      text += count;
      text += '}' + again + '*';
      at += count.size() + 3;
    } else {
      if (pattern[at] == '(') open.push_back(text.size());
      if (pattern[at] == ')' && !open.empty()) {
        group = open.back();
        open.pop_back();
      }
      const size_t end = EndOfAtom(pattern, at);
      text += pattern.substr(at, end - at);
      at = end;
    }
    if (text.size() > kMostPatternBytes) return std::nullopt;
  }
  return text;
}

}  // namespace withy::grammar
