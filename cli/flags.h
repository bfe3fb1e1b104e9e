// Command-line flags of one command: declared once, parsed and explained from the declaration.
// Neighbours: command.h's table declares them. Knows nothing of what they mean.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::cli {

struct Flag {
  std::string name;   // without the dashes
  std::string value;  // what stands for its value in the help; empty: a switch
  std::string help;
};

// What was given on the command line.
class Args {
 public:
  // "--name value", "--name=value", "--switch"; "--" ends the flags; the rest is positional.
  // Errors: INVALID_ARGUMENT naming the flag.
  static absl::StatusOr<Args> Parse(std::span<const Flag> flags, std::span<char* const> words);

  bool Has(std::string_view name) const;
  // The last one given; `fallback` when none.
  std::string Get(std::string_view name, std::string_view fallback = "") const;
  std::vector<std::string> GetAll(std::string_view name) const;
  const std::vector<std::string>& positional() const { return positional_; }

  // Errors of all: INVALID_ARGUMENT naming flag and value; unset flags are nullopt.
  absl::StatusOr<std::optional<double>> Number(std::string_view name) const;
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view name, int64_t low,
                                                 int64_t high) const;
  absl::StatusOr<std::optional<uint64_t>> Unsigned(std::string_view name) const;

 private:
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> positional_;
};

// One line a flag, aligned.
std::string FlagsHelp(std::span<const Flag> flags);

}  // namespace withy::cli
