// Whether what a person gave can be sent: the contract's strings are UTF-8.
#pragma once

#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace withy::cli {

// Errors: INVALID_ARGUMENT naming `what` and the first byte that is no UTF-8.
absl::Status CheckUtf8(std::string_view what, std::string_view text);

// Of all values of these flags.
absl::Status CheckFlagsUtf8(const Args& args, std::initializer_list<const char*> flags);

}  // namespace withy::cli
