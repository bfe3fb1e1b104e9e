// Conversions between std::string_view and absl::string_view, which are different types in Debian
// 12's Abseil. Our interfaces speak std::string_view; calls into Abseil go through ToAbsl().
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace withy {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace withy
