#include "bench/slo/slo_options.h"

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

absl::Status CheckTraces(const SloOptions& options) {
  for (const std::string& text : options.alphas) {
    double alpha = 0;
    if (absl::SimpleAtod(text, &alpha) && std::abs(alpha) <= kMostSkewed) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--alphas: \"", text, "\" is no number between -", kMostSkewed, " and ", kMostSkewed));
  }
  for (const std::string& text : options.real) {
    if (text == "all" || Wanted(options.alphas, text)) continue;
    return Unknown("real", text,
                   absl::StrCat("--alphas (", absl::StrJoin(options.alphas, ", "), ") nor all"));
  }
  if (std::isfinite(options.load) && options.load > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--load is ", options.load, "; it must be a number above 0"));
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

absl::Status CheckOptions(const SloOptions& options) {
  WITHY_RETURN_IF_ERROR(CheckTraces(options));
  for (const std::string& name : options.tables) {
    if (std::find(kTables.begin(), kTables.end(), name) != kTables.end()) continue;
    return Unknown("tables", name, absl::StrJoin(kTables, ", "));
  }
  if (options.tlms.empty() &&
      std::find(options.tables.begin(), options.tables.end(), "tlms") != options.tables.end()) {
    return absl::InvalidArgumentError("--tables: tlms needs other TLMs: --tlms NAME=FILE.gguf");
  }
  WITHY_RETURN_IF_ERROR(CheckFlag("requests", options.requests, 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("rounds", options.rounds, 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", options.threads, 1, 1024));
  WITHY_RETURN_IF_ERROR(CheckFlag("five_shot_percent", options.five_shot_percent, 0, 100));
  std::vector<std::string> inputs;
  for (const std::string& text : options.tlms) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tlms: \"", text, "\" is not NAME=FILE.gguf"));
    }
    WITHY_RETURN_IF_ERROR(CheckFile("tlms", parts.second));
    inputs.push_back(parts.second);
  }
  for (const auto& [flag, path] : options.files) {
    WITHY_RETURN_IF_ERROR(CheckFile(flag, path));
    inputs.push_back(path);
  }
  return options.calls.empty() ? absl::OkStatus() : CheckOutput(options.calls, inputs);
}

}  // namespace withy::bench
