// String helpers. std::string_view and absl::string_view are different types in Debian 12's Abseil:
// our interfaces use std::string_view; calls into Abseil go through ToAbsl().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace withy {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

// "1 token", "2 tokens": `count` and a noun whose plural ends in -s.
inline std::string Counted(uint64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + " ";
  text += noun;
  if (count != 1) text += 's';
  return text;
}

}  // namespace withy
