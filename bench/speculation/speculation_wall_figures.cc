#include "bench/speculation/speculation_wall_figures.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace withy::bench {
namespace {

constexpr char kWays[] =
    "stream, mmap, layers, peer, tree, tree:SOURCE+SOURCE, line:N, single, single:F/R, sti";
constexpr int kMostLine = 64;

absl::Status BadWay(const std::string& name, const char* why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--ways ", name, ": ", why, "; there are ", kWays));
}

// As many leaves a pass and branches as pay while weights are read.
DecodeWay Tree() {
  return {.tree = true,
          .lookup = true,
          .draft = true,
          .weighed = true,
          .ahead = true,
          .leaves_per_pass = 4,
          .branch_threshold = 0.05};
}

absl::Status ReadSources(const std::string& name, const std::string& sources, DecodeWay* way) {
  way->lookup = way->prefix = way->draft = way->ahead = false;
  const std::vector<std::string> names = absl::StrSplit(sources, '+');
  for (const std::string& source : names) {
    if (source == "lookup") {
      way->lookup = true;
    } else if (source == "prefix") {
      way->prefix = true;
    } else if (source == "draft") {
      way->draft = true;
    } else if (source == "ahead") {
      way->ahead = true;
    } else {
      return BadWay(name, "a source is none of lookup, prefix, draft and ahead");
    }
  }
  if (way->ahead && !way->draft) return BadWay(name, "ahead needs the source draft");
  return absl::OkStatus();
}

absl::Status ReadThresholds(const std::string& name, const std::string& text, DecodeWay* way) {
  const std::vector<std::string> numbers = absl::StrSplit(text, '/');
  if (numbers.size() != 2 || !absl::SimpleAtod(numbers[0], &way->fallback) ||
      !absl::SimpleAtod(numbers[1], &way->rollback) || way->fallback <= 0 || way->rollback <= 0) {
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
    way.decode = Tree();
    if (!tail.empty()) WITHY_RETURN_IF_ERROR(ReadSources(name, tail, &way.decode));
  } else if (head == "line") {
    way.kind = WallWay::Kind::kPair;
    if (!absl::SimpleAtoi(tail, &way.decode.chain) || way.decode.chain < 1 ||
        way.decode.chain > kMostLine) {
      return BadWay(name, "N is not 1 to 64");
    }
  } else if (head == "single") {
    way.kind = WallWay::Kind::kPair;
    way.decode.fallback = 0.8;
    way.decode.rollback = 2;
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
    sum.window_ms += one.answer.window_ms;
    sum.tokens += static_cast<int64_t>(one.answer.tokens.size());
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

void Samples::Add(const std::string& key, double sample) {
  if (!samples_.contains(key)) order_.push_back(key);
  samples_[key].push_back(sample);
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
