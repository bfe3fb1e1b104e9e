#include "bench/speculation/speculation_wall_figures.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "policy/constants.h"

namespace withy::bench {
namespace {

constexpr char kWays[] =
    "stream, mmap, layers, peer, tree, tree:SOURCE, tree:SOURCE+ahead, service, service:SOURCE, "
    "line:N, single, single:F/R, sti";
constexpr int kMostLine = policy::kMostDraftDepth;

absl::Status BadWay(const std::string& name, const char* why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--ways ", name, ": ", why, "; there are ", kWays));
}

absl::Status ReadSource(const std::string& name, std::string_view source, DecodeWay* way) {
  using policy::SpeculationMode;
  constexpr std::pair<std::string_view, SpeculationMode> kSources[] = {
      {"auto", SpeculationMode::kAuto},
      {"lookup", SpeculationMode::kLookup},
      {"prefix", SpeculationMode::kPrefix},
      {"draft", SpeculationMode::kDraft}};
  constexpr std::string_view kAhead = "+ahead";
  way->windows = source.ends_with(kAhead);
  if (way->windows) source.remove_suffix(kAhead.size());
  for (const auto& [known, mode] : kSources) {
    if (source == known) way->speculation = mode;
  }
  if (way->speculation == SpeculationMode::kOff) {
    return BadWay(name, "the source is none of auto, lookup, prefix and draft");
  }
  if (way->windows && way->speculation == SpeculationMode::kLookup) {
    return BadWay(name, "ahead needs a model that drafts");
  }
  return absl::OkStatus();
}

absl::Status ReadThresholds(const std::string& name, const std::string& text, DecodeWay* way) {
  const std::vector<std::string> numbers = absl::StrSplit(text, '/');
  if (numbers.size() != 2 || !absl::SimpleAtod(numbers[0], &way->big_little.fallback) ||
      !absl::SimpleAtod(numbers[1], &way->big_little.rollback) || way->big_little.fallback <= 0 ||
      way->big_little.rollback <= 0) {
    return BadWay(name, "needs two thresholds above 0, as in single:0.8/2");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WallWay> ParseWay(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string head = name.substr(0, colon);
  const std::string tail = colon == std::string::npos ? "" : name.substr(colon + 1);
  WallWay way{.name = name};
  if (colon != std::string::npos && tail.empty()) return BadWay(name, "nothing follows the colon");
  if (head == "tree") {
    way.kind = WallWay::Kind::kPair;
    WITHY_RETURN_IF_ERROR(ReadSource(name, tail.empty() ? "auto+ahead" : tail, &way.decode));
  } else if (head == "service") {
    way.kind = WallWay::Kind::kService;
    if (tail != "off") {
      WITHY_RETURN_IF_ERROR(
          ReadSource(name, absl::StrCat(tail.empty() ? "auto" : tail, "+ahead"), &way.decode));
    }
  } else if (head == "line") {
    way.kind = WallWay::Kind::kPair;
    if (!absl::SimpleAtoi(tail, &way.decode.chain) || way.decode.chain < 1 ||
        way.decode.chain > kMostLine) {
      return BadWay(name, "N is not 1 to 32");
    }
  } else if (head == "single") {
    way.kind = WallWay::Kind::kPair;
    way.decode.big_little = {.fallback = 0.8, .rollback = 2};
    if (!tail.empty()) WITHY_RETURN_IF_ERROR(ReadThresholds(name, tail, &way.decode));
  } else if (name == "sti") {
    way.kind = WallWay::Kind::kShards;
  } else if (name != "stream" && name != "mmap" && name != "layers" && name != "peer") {
    return BadWay(name, "there is no such way");
  }
  return way;
}

absl::StatusOr<double> BudgetShare(const std::string& percent) {
  double number = 0;
  if (!absl::SimpleAtod(percent, &number) || !(number > 0) || number > 100) {
    return absl::InvalidArgumentError(
        absl::StrCat("--budgets ", percent, ": is no per cent of the weights, above 0 to 100"));
  }
  return number / 100;
}

WallSum SumOf(const std::vector<WallAnswer>& answers) {
  WallSum sum;
  for (const WallAnswer& one : answers) {
    sum.ms += one.answer.ms;
    sum.draft_ms += one.answer.draft_ms;
    sum.window_drafted += one.answer.window_drafted;
    sum.tokens += one.answer.decoded;
    sum.passes += one.answer.target_passes;
    sum.drafted += one.answer.drafted;
    sum.accepted += one.answer.accepted;
  }
  return sum;
}

std::map<std::string, WallSum> SumByWay(const std::vector<WallAnswer>& answers) {
  std::map<std::string, std::vector<WallAnswer>> by_way;
  for (const WallAnswer& one : answers) by_way[one.way].push_back(one);
  std::map<std::string, WallSum> sums;
  for (const auto& [way, its] : by_way) sums[way] = SumOf(its);
  return sums;
}

void AddRatios(const std::string& prefix, const std::string& ours, const std::string& percent,
               const std::map<std::string, double>& token_s, Samples* samples) {
  const auto own = token_s.find(ours);
  if (own == token_s.end() || own->second <= 0) return;
  double best_linear = 0;
  for (const auto& [way, seconds] : token_s) {
    const double ratio = seconds / own->second;
    if (way.starts_with("line:")) {
      samples->Add(absl::StrCat(prefix, "_vs_linear_", way.substr(5), "_", percent), ratio);
      best_linear = best_linear == 0 ? ratio : std::min(best_linear, ratio);
    } else if (way == "service:off") {
      samples->Add(absl::StrCat(prefix, "_vs_off_", percent), ratio);
    } else if (way.find(':') == std::string::npos && way != ours) {
      samples->Add(absl::StrCat(prefix, "_vs_", way, "_", percent), ratio);
    }
  }
  if (best_linear > 0) {
    samples->Add(absl::StrCat(prefix, "_vs_best_linear_", percent), best_linear);
  }
}

double LeastOver(const std::vector<std::string>& percents, const std::string& key,
                 const Samples& samples) {
  double least = 0;
  for (const std::string& percent : percents) {
    const std::string one = absl::StrCat(key, "_", percent);
    if (!samples.Has(one)) continue;
    least = least == 0 ? samples.Median(one) : std::min(least, samples.Median(one));
  }
  return least;
}

}  // namespace withy::bench
