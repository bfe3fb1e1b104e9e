// Parses the flags of an offline tool or a benchmark (ABSL_FLAG). The five processes (rpc/) and
// withyctl (cli/flags.h) have parsers of their own.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace withy {

// Sets every flag that argv names. --help prints `usage`, then the flags that withy's own sources
// declare, and exits; so does, with a complaint, a flag that is unknown or malformed, and a word
// that is none. `usage` says what the program does and what it must be given. Call it first in
// main, once.
void ParseProgramFlags(std::string_view usage, int argc, char** argv);

// Whether a flag's value is one that the program can work with. Errors: INVALID_ARGUMENT naming
// flag, value and limits.
absl::Status CheckFlag(std::string_view flag, int64_t value, int64_t low, int64_t high);

}  // namespace withy
