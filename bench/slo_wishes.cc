#include "bench/slo_wishes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"

namespace withy::bench {
namespace {

constexpr double kMostSkewed = 5;  // from there on one app makes all requests
constexpr std::array<const char*, 9> kTables = {"grid", "e2e",      "speedup", "concise", "steps",
                                                "tlms", "ablation", "all",     "none"};

absl::Status Unknown(const std::string& flag, const std::string& value, const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": \"", value, "\" is none of ", wanted));
}

absl::Status CheckTraces(const SloWishes& wishes) {
  for (const std::string& text : wishes.alphas) {
    double alpha = 0;
    if (absl::SimpleAtod(text, &alpha) && std::abs(alpha) <= kMostSkewed) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--alphas: \"", text, "\" is no number between -", kMostSkewed, " and ", kMostSkewed));
  }
  for (const std::string& text : wishes.real) {
    if (text == "all" || Wanted(wishes.alphas, text)) continue;
    return Unknown("real", text,
                   absl::StrCat("--alphas (", absl::StrJoin(wishes.alphas, ", "), ") nor all"));
  }
  if (std::isfinite(wishes.load) && wishes.load > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--load is ", wishes.load, "; it must be a number above 0"));
}

absl::Status CheckFile(const std::string& flag, const std::string& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::is_regular_file(path, error)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("--", flag, " ", path, ": there is no such file: name one, or leave it out"));
}

}  // namespace

bool Wanted(const std::vector<std::string>& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& item) { return item == name || item == "all"; });
}

absl::Status CheckWishes(const SloWishes& wishes) {
  WITHY_RETURN_IF_ERROR(CheckTraces(wishes));
  for (const std::string& name : wishes.tables) {
    if (std::find(kTables.begin(), kTables.end(), name) != kTables.end()) continue;
    return Unknown("tables", name, absl::StrJoin(kTables, ", "));
  }
  if (wishes.tlms.empty() &&
      std::find(wishes.tables.begin(), wishes.tables.end(), "tlms") != wishes.tables.end()) {
    return absl::InvalidArgumentError("--tables: tlms needs other TLMs: --tlms NAME=FILE.gguf");
  }
  WITHY_RETURN_IF_ERROR(CheckFlag("requests", wishes.requests, 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("rounds", wishes.rounds, 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", wishes.threads, 1, 1024));
  WITHY_RETURN_IF_ERROR(CheckFlag("five_shot_percent", wishes.five_shot_percent, 0, 100));
  std::vector<std::string> inputs;
  for (const std::string& text : wishes.tlms) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tlms: \"", text, "\" is not NAME=FILE.gguf"));
    }
    WITHY_RETURN_IF_ERROR(CheckFile("tlms", parts.second));
    inputs.push_back(parts.second);
  }
  for (const auto& [flag, path] : wishes.files) {
    WITHY_RETURN_IF_ERROR(CheckFile(flag, path));
    inputs.push_back(path);
  }
  return wishes.calls.empty() ? absl::OkStatus() : CheckOutput(wishes.calls, inputs);
}

}  // namespace withy::bench
