// Checks that input is valid UTF-8, as the contract's strings require.
#pragma once

#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "cli/flags.h"

namespace withy::cli {

// Errors: INVALID_ARGUMENT naming `what` and the first byte that is not UTF-8.
absl::Status CheckUtf8(std::string_view what, std::string_view text);

// Checks all values of these flags.
absl::Status CheckFlagsUtf8(const Args& args, std::initializer_list<const char*> flags);

}  // namespace withy::cli
