#include "bench/contexts/contexts_trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::bench {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr std::array<std::string_view, 3> kPatternNames = {"random", "markov", "gaussian"};

// The same on every platform, unlike the distributions of <random>.
class TraceRandom {
 public:
  explicit TraceRandom(uint64_t seed) : engine_(seed) {}
  // In [0, 1).
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  double Exponential(double mean) { return -mean * std::log1p(-Uniform()); }
  uint32_t Between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(Uniform() * (high - low + 1));
  }
  size_t Weighted(const std::vector<double>& weights) {
    double left = Uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i + 1 < weights.size(); ++i) {
      left -= weights[i];
      if (left < 0) return i;
    }
    return weights.size() - 1;
  }

 private:
  std::mt19937_64 engine_;
};

double MeanDelta(uint32_t context) {
  const ContextDataset& dataset = ContextDatasets()[context % kContextDatasets];
  return (dataset.low_tokens + dataset.high_tokens) / 2.0;
}

std::vector<double> GaussianWeights(uint32_t contexts) {
  double mean = 0, square = 0;
  for (uint32_t i = 0; i < contexts; ++i) {
    mean += MeanDelta(i) / contexts;
    square += MeanDelta(i) * MeanDelta(i) / contexts;
  }
  const double variance = square - mean * mean;
  std::vector<double> weights;
  for (uint32_t i = 0; i < contexts; ++i) {
    const double off = MeanDelta(i) - mean;
    weights.push_back(variance > 0 ? std::exp(-off * off / (2 * variance)) : 1.0);
  }
  return weights;
}

// Draws the next context; `recent`: all contexts, the latest used first.
uint32_t NextContext(SwitchPattern pattern, const std::vector<double>& gaussian,
                     const std::vector<uint32_t>& recent, TraceRandom* random) {
  if (pattern == SwitchPattern::kGaussian) {
    return static_cast<uint32_t>(random->Weighted(gaussian));
  }
  if (pattern == SwitchPattern::kRandom) {
    return random->Between(0, static_cast<uint32_t>(recent.size()) - 1);
  }
  std::vector<double> weights;
  for (size_t r = 0; r < recent.size(); ++r) weights.push_back(1.0 / static_cast<double>(1 + r));
  return recent[random->Weighted(weights)];
}

}  // namespace

const std::array<ContextDataset, kContextDatasets>& ContextDatasets() {
  static constexpr std::array<ContextDataset, kContextDatasets> kDatasets = {{
      {"news classification", 200, 500},
      {"document summary", 1000, 2000},
      {"chat history summary", 100, 300},
      {"text comprehension", 500, 1000},
      {"translation", 100, 500},
      {"sentiment classification", 10, 100},
  }};
  return kDatasets;
}

absl::StatusOr<SwitchPattern> FindSwitchPattern(std::string_view name) {
  for (size_t i = 0; i < kPatternNames.size(); ++i) {
    if (kPatternNames[i] == name) return static_cast<SwitchPattern>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("no switching pattern is called \"", ToAbsl(name),
                                                 "\"; there are random, markov, gaussian"));
}

std::string_view SwitchPatternName(SwitchPattern pattern) {
  return kPatternNames[static_cast<size_t>(pattern)];
}

std::vector<ContextCall> DrawContextTrace(const ContextTraceSpec& spec) {
  TraceRandom random(spec.seed);
  const std::vector<double> gaussian = GaussianWeights(spec.contexts);
  std::vector<uint32_t> recent(spec.contexts);
  std::iota(recent.begin(), recent.end(), 0);
  std::vector<ContextCall> calls;
  for (double now_s = random.Exponential(spec.mean_gap_s); now_s < spec.hours * kSecondsPerHour;
       now_s += random.Exponential(spec.mean_gap_s)) {
    const uint32_t context = NextContext(spec.pattern, gaussian, recent, &random);
    const ContextDataset& dataset = ContextDatasets()[context % kContextDatasets];
    calls.push_back({now_s, context, random.Between(dataset.low_tokens, dataset.high_tokens)});
    const auto used = std::find(recent.begin(), recent.end(), context);
    std::rotate(recent.begin(), used, used + 1);
  }
  return calls;
}

}  // namespace withy::bench
