// Command-line flags of one command: parsing and help text from one declaration. Neighbour:
// command.h's table declares them. Does not interpret them.
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
  std::string name;   // without dashes
  std::string value;  // placeholder of the value in the help text; empty: a switch
  std::string help;
};

// The parsed command line.
class Args {
 public:
  // "--name value", "--name=value", "--switch"; "--" ends the flags; other words are positional.
  // Errors: INVALID_ARGUMENT naming the flag.
  static absl::StatusOr<Args> Parse(std::span<const Flag> flags, std::span<char* const> words);

  bool Has(std::string_view name) const;
  // The last value given, or `fallback`.
  std::string Get(std::string_view name, std::string_view fallback = "") const;
  std::vector<std::string> GetAll(std::string_view name) const;
  const std::vector<std::string>& positional() const { return positional_; }

  // Unset flags are nullopt. Errors: INVALID_ARGUMENT naming flag and value.
  absl::StatusOr<std::optional<double>> Number(std::string_view name) const;
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view name, int64_t low,
                                                 int64_t high) const;
  absl::StatusOr<std::optional<uint64_t>> Unsigned(std::string_view name) const;

 private:
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> positional_;
};

// One line per flag, aligned.
std::string FlagsHelp(std::span<const Flag> flags);

}  // namespace withy::cli
