// Which names a tool may have: what apps declare, and what is read out of a model's answer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace withy {

inline constexpr size_t kMaxToolNameBytes = 128;

// 1 to kMaxToolNameBytes of letters, digits, '_', '-', '.', ':' and '/'.
inline bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
         });
}

}  // namespace withy
