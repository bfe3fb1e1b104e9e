#include "bench/contexts/contexts_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/samples.h"

namespace withy::bench {
namespace {

constexpr const char* kOurs = "withy";
constexpr const char* kBaselines[] = {"lmk", "swap", "vllm-s", "vllm-sq", "cake"};
// Latencies below are equal: a clock and a scheduler are not more exact.
constexpr double kLeastMs = 1e-3;

double Speedup(const LatencySummary& baseline, const LatencySummary& ours) {
  return std::max(baseline.mean_ms, kLeastMs) / std::max(ours.mean_ms, kLeastMs);
}

// Speedups over one baseline, in the settings that have both.
std::vector<double> Speedups(const ContextResults& results, const std::string& baseline,
                             bool native_gqa_only = false) {
  std::vector<double> speedups;
  for (const auto& [setting, by_strategy] : results) {
    if (native_gqa_only && (setting.shape != "gqa" || setting.disk_mb_per_s != 0)) continue;
    const auto ours = by_strategy.find(kOurs);
    const auto theirs = by_strategy.find(baseline);
    if (ours == by_strategy.end() || theirs == by_strategy.end()) continue;
    speedups.push_back(Speedup(theirs->second, ours->second));
  }
  return speedups;
}

std::optional<double> GeometricMean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

}  // namespace

LatencySummary SummarizeLatencies(std::vector<double> ms) {
  LatencySummary summary;
  summary.switches = ms.size();
  if (ms.empty()) return summary;
  summary.mean_ms = Mean(ms);
  summary.p50_ms = Quantile(ms, 0.5);
  summary.p99_ms = Quantile(ms, 0.99);
  summary.max_ms = Quantile(std::move(ms), 1);
  return summary;
}

double RecomputeCost::Ms(uint32_t first, uint32_t count) const {
  const double n = count;
  return n * row_ms + position_ms * (n * first + n * (n - 1) / 2);
}

RecomputeCost FitRecomputeCost(std::span<const RecomputeSample> samples) {
  // Each sample's mean time of a row against the mean position of its rows.
  double sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0;
  const auto n = static_cast<double>(samples.size());
  for (const RecomputeSample& sample : samples) {
    const double x = sample.first + (sample.count - 1) / 2.0;
    const double y = sample.ms / sample.count;
    sum_x += x;
    sum_y += y;
    sum_xx += x * x;
    sum_xy += x * y;
  }
  RecomputeCost cost;
  cost.position_ms = std::max(0.0, (n * sum_xy - sum_x * sum_y) / (n * sum_xx - sum_x * sum_x));
  cost.row_ms = std::max(0.0, (sum_y - cost.position_ms * sum_x) / n);
  return cost;
}

ContextKeys CompareStrategies(const ContextResults& results) {
  ContextKeys keys;
  keys.lmk_speedup = GeometricMean(Speedups(results, "lmk", /*native_gqa_only=*/true));
  keys.swap_speedup = GeometricMean(Speedups(results, "swap"));
  const std::vector<double> over_vllm_sq = Speedups(results, "vllm-sq");
  keys.vllm_sq_speedup = GeometricMean(over_vllm_sq);
  if (!over_vllm_sq.empty()) {
    keys.vllm_sq_speedup_best = *std::max_element(over_vllm_sq.begin(), over_vllm_sq.end());
  }
  for (const auto& [setting, by_strategy] : results) {
    const auto ours = by_strategy.find(kOurs);
    if (ours == by_strategy.end()) continue;
    for (const char* baseline : kBaselines) {
      const auto theirs = by_strategy.find(baseline);
      if (theirs == by_strategy.end()) continue;
      const double speedup = Speedup(theirs->second, ours->second);
      if (keys.worst_vs_best_baseline.has_value() && speedup >= *keys.worst_vs_best_baseline) {
        continue;
      }
      keys.worst_vs_best_baseline = speedup;
      keys.worst_setting = absl::StrCat(baseline, ": ", DescribeSetting(setting));
    }
  }
  return keys;
}

std::map<ContextSetting, std::map<std::string, uint32_t>> ContextsWithin(
    const ContextResults& results, double limit_ms) {
  std::map<ContextSetting, std::map<std::string, uint32_t>> within;
  for (const auto& [setting, by_strategy] : results) {
    ContextSetting any = setting;
    any.contexts = 0;
    for (const auto& [strategy, latency] : by_strategy) {
      uint32_t& most = within[any][strategy];
      if (latency.mean_ms <= limit_ms) most = std::max(most, setting.contexts);
    }
  }
  return within;
}

std::string DescribeSetting(const ContextSetting& setting) {
  return absl::StrFormat("%s, %s, %d contexts, arena %.4g %%, %s", setting.shape, setting.pattern,
                         setting.contexts, setting.budget_percent,
                         setting.disk_mb_per_s == 0
                             ? "disk as it is"
                             : absl::StrCat("disk of ", setting.disk_mb_per_s, " MB/s"));
}

}  // namespace withy::bench
