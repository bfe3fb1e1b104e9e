// Figures of the benchmark of contexts: statistics of switching latencies, the cost of recomputing,
// and the keys that compare strategies. Pure. Neighbours: contexts_run.h measures, contexts.cc
// prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace withy::bench {

struct LatencySummary {
  size_t switches = 0;
  double mean_ms = 0;
  double p50_ms = 0;
  double p99_ms = 0;  // the smallest latency that 99 % do not exceed
  double max_ms = 0;
};
// Of no latencies: all 0.
LatencySummary SummarizeLatencies(std::vector<double> ms);

// Time of one row of a prefill at `position`: row_ms + position * position_ms.
struct RecomputeCost {
  double row_ms = 0;
  double position_ms = 0;

  // Of `count` rows from `first` on.
  double Ms(uint32_t first, uint32_t count) const;
};
// Measured: `count` rows from `first` on took `ms`.
struct RecomputeSample {
  uint32_t first = 0;
  uint32_t count = 0;
  double ms = 0;
};
// Least squares, neither part below 0. `samples` has two different positions at least.
RecomputeCost FitRecomputeCost(std::span<const RecomputeSample> samples);

// Where strategies are compared: all else is equal.
struct ContextSetting {
  std::string shape = "";    // "gqa" or "mha"
  std::string pattern = "";  // see FindSwitchPattern
  uint32_t contexts = 0;
  double budget_percent = 0;   // arena, of the contexts' bytes at 8 bits
  uint32_t disk_mb_per_s = 0;  // 0: as the disk is

  bool operator<(const ContextSetting& other) const {
    const auto key = [](const ContextSetting& s) {
      return std::tie(s.shape, s.pattern, s.contexts, s.budget_percent, s.disk_mb_per_s);
    };
    return key(*this) < key(other);
  }
};

// By setting and strategy. A strategy whose contexts do not fit a setting's arena has no figure
// there.
using ContextResults = std::map<ContextSetting, std::map<std::string, LatencySummary>>;

// None: nothing was measured that the key compares. Speedups are ratios of mean latencies, baseline
// over `withy`; those of several settings are geometric means.
struct ContextKeys {
  std::optional<double> lmk_speedup;             // gqa, disk as it is
  std::optional<double> swap_speedup;            // all settings
  std::optional<double> vllm_sq_speedup;         // all settings
  std::optional<double> vllm_sq_speedup_best;    // of all settings
  std::optional<double> worst_vs_best_baseline;  // the worst setting, against its best baseline
  std::string worst_setting;                     // where that is
};
ContextKeys CompareStrategies(const ContextResults& results);

// The largest number of active contexts whose switches take at most `limit_ms` on average, by
// setting (with 0 contexts) and strategy; 0: more than that already with the fewest.
std::map<ContextSetting, std::map<std::string, uint32_t>> ContextsWithin(
    const ContextResults& results, double limit_ms);

std::string DescribeSetting(const ContextSetting& setting);

}  // namespace withy::bench
