#include "base/program_flags.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/strings.h"

namespace withy {
namespace {

// A source file's path in the repository, without the build directory.
std::string InRepository(absl::string_view file) {
  absl::string_view root = __FILE__;
  if (absl::ConsumeSuffix(&root, "base/program_flags.cc")) absl::ConsumePrefix(&file, root);
  return std::string(file);
}

}  // namespace

void ParseProgramFlags(std::string_view usage, int argc, char** argv) {
  absl::FlagsUsageConfig config;
  // Abseil shows the flags of the file named like the program; our main.cc files are not.
  config.contains_help_flags = [](absl::string_view file) {
    return !absl::StrContains(file, "absl/");
  };
  config.normalize_filename = InRepository;
  absl::SetFlagsUsageConfig(config);
  absl::SetProgramUsageMessage(ToAbsl(usage));
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() < 2) return;
  std::fprintf(stderr, "%s: unknown flag '%s' (--help lists the flags)\n", words[0], words[1]);
  std::exit(2);
}

int RunProgram(std::string_view usage, int argc, char** argv,
               const std::function<absl::Status()>& run, const std::function<bool()>& complete) {
  ParseProgramFlags(usage, argc, argv);
  std::string_view name = argv[0];
  name.remove_prefix(name.rfind('/') + 1);
  const auto fail = [name](std::string_view why, int code) {
    std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(name.size()), name.data(),
                 static_cast<int>(why.size()), why.data());
    return code;
  };
  if (complete != nullptr && !complete()) return fail(usage, 2);
  const absl::Status status = run();
  return status.ok() ? 0 : fail(status.ToString(), 1);
}

absl::Status CheckFlag(std::string_view flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", ToAbsl(flag), " is ", value, "; it must be between ", low, " and ", high));
}

}  // namespace withy
