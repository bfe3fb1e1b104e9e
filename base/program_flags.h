// Parses the flags of an offline tool or a benchmark (ABSL_FLAG). The five processes (rpc/) and
// withyctl (cli/flags.h) have their own parsers.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"

namespace withy {

// Sets every flag in argv. --help prints `usage` and the flags declared in withy's own sources,
// then exits. An unknown or malformed flag, or a word that is not a flag, prints an error and
// exits. `usage` says what the program does and which flags it requires. Call it once, first in
// main.
void ParseProgramFlags(std::string_view usage, int argc, char** argv);

// A whole main: parses the flags and runs the program. Returns the exit status: 1 with the reason
// on stderr if `run` fails, 2 with the usage where a required flag is missing. `complete`: whether
// all are there; null: none is required.
int RunProgram(std::string_view usage, int argc, char** argv,
               const std::function<absl::Status()>& run,
               const std::function<bool()>& complete = nullptr);

// Checks that a flag's value is in [low, high]. Errors: INVALID_ARGUMENT naming flag, value and
// limits.
absl::Status CheckFlag(std::string_view flag, int64_t value, int64_t low, int64_t high);

}  // namespace withy
