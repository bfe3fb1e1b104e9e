// Which names a tool may have: what apps declare, and what is read out of a model's answer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/contract_limits.h"

namespace withy {

// 1 to kMaxToolNameBytes of letters, digits, '_', '-', '.', ':' and '/'.
inline bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
         });
}

}  // namespace withy
