#include "cli/flags.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::cli {

absl::StatusOr<Args> Args::Parse(std::span<const Flag> flags, std::span<char* const> words) {
  Args args;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--") {
      args.positional_.insert(args.positional_.end(), words.begin() + i + 1, words.end());
      break;
    }
    if (!word.starts_with("--")) {
      args.positional_.emplace_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name(word.substr(2, equals == std::string_view::npos ? equals : equals - 2));
    const auto flag =
        std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags.end())
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
    std::string value;
    if (equals != std::string_view::npos) {
      if (flag->value.empty())
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      value = word.substr(equals + 1);
    } else if (!flag->value.empty()) {
      if (i + 1 == words.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " needs a value: --", name, " ", flag->value));
      }
      value = words[++i];
    }
    args.values_[name].push_back(std::move(value));
  }
  return args;
}

bool Args::Has(std::string_view name) const { return values_.find(name) != values_.end(); }

std::string Args::Get(std::string_view name, std::string_view fallback) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::string(fallback) : it->second.back();
}

std::vector<std::string> Args::GetAll(std::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::vector<std::string>() : it->second;
}

absl::StatusOr<std::optional<double>> Args::Number(std::string_view name) const {
  if (!Has(name)) return std::nullopt;
  double value = 0;
  if (!absl::SimpleAtod(Get(name), &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", ToAbsl(name), " is \"", Get(name), "\": it must be a number"));
  }
  return value;
}

absl::StatusOr<std::optional<int64_t>> Args::Integer(std::string_view name, int64_t low,
                                                     int64_t high) const {
  if (!Has(name)) return std::nullopt;
  int64_t value = 0;
  if (!absl::SimpleAtoi(Get(name), &value) || value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat("--", ToAbsl(name), " is \"", Get(name),
                                                   "\": it must be a whole number between ", low,
                                                   " and ", high));
  }
  return value;
}

absl::StatusOr<std::optional<uint64_t>> Args::Unsigned(std::string_view name) const {
  if (!Has(name)) return std::nullopt;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(Get(name), &value)) {
    return absl::InvalidArgumentError(absl::StrCat("--", ToAbsl(name), " is \"", Get(name),
                                                   "\": it must be a whole number between 0 and ",
                                                   std::numeric_limits<uint64_t>::max()));
  }
  return value;
}

std::string FlagsHelp(std::span<const Flag> flags) {
  size_t width = 0;
  for (const Flag& flag : flags) width = std::max(width, flag.name.size() + flag.value.size() + 1);
  std::string text;
  for (const Flag& flag : flags) {
    std::string head = flag.value.empty() ? flag.name : flag.name + " " + flag.value;
    head.resize(width, ' ');
    absl::StrAppend(&text, "  --", head, "  ", flag.help, "\n");
  }
  return text;
}

}  // namespace withy::cli
