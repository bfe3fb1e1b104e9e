// How a call is named everywhere that people read or write: 16 hexadecimal digits, as in
// GenerateStarted.call_id, in logs, on the live page, in timelines and for withyctl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace withy {

inline std::string CallName(uint64_t id) { return absl::StrFormat("%016x", id); }

// The call of a name; none: it is not a name of 1 to 16 hexadecimal digits, or no call's (0).
inline std::optional<uint64_t> ParseCallName(std::string_view name) {
  constexpr size_t kMostDigits = 16;
  uint64_t id = 0;
  const bool digits = !name.empty() && name.size() <= kMostDigits &&
                      name.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  if (!digits || !absl::SimpleHexAtoi(ToAbsl(name), &id) || id == 0) return std::nullopt;
  return id;
}

}  // namespace withy
