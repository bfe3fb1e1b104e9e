#include "bench/profiler/profiler_figures.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "bench/samples.h"

namespace withy::bench {

MeanBound TrimmedMean(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto cut = static_cast<int64_t>(samples.size() / 10);
  samples = {samples.begin() + cut, samples.end() - cut};
  const auto count = static_cast<double>(samples.size());
  double sum = 0, squares = 0;
  for (const double sample : samples) sum += sample;
  const double mean = sum / count;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  const double deviation = count > 1 ? std::sqrt(squares / (count - 1)) : 0;
  return {mean, mean + 1.96 * deviation / std::sqrt(count)};
}

double Accuracy(double measured, double truth) {
  return truth > 0 ? 1 - std::abs(measured - truth) / truth : 0;
}

std::vector<double> PredictionErrors(std::span<const PredictedPass> passes, int32_t calls) {
  std::vector<double> errors;
  for (const PredictedPass& pass : passes) {
    if (!pass.held_out || !pass.is_steady_step() || (calls != 0 && pass.calls != calls)) continue;
    errors.push_back(std::abs(pass.predicted_ms / pass.took_ms - 1));
  }
  return errors;
}

std::vector<double> PredictionFloor(std::span<const PredictedPass> passes, int32_t calls) {
  std::map<int32_t, std::vector<double>> times;
  for (const PredictedPass& pass : passes) {
    if (pass.is_steady_step()) times[pass.prompt].push_back(pass.took_ms);
  }
  std::vector<PredictedPass> likely(passes.begin(), passes.end());
  for (PredictedPass& pass : likely) pass.predicted_ms = Quantile(times[pass.prompt], 0.5);
  return PredictionErrors(likely, calls);
}

size_t RecoveryCalls(const std::vector<bool>& in_time, size_t change, size_t window, double share) {
  for (size_t first = change; first + window <= in_time.size(); ++first) {
    const auto begin = in_time.begin() + static_cast<int64_t>(first);
    const auto met = std::count(begin, begin + static_cast<int64_t>(window), true);
    if (*begin && static_cast<double>(met) >= share * static_cast<double>(window)) {
      return first - change;
    }
  }
  return in_time.size() - std::min(change, in_time.size());
}

}  // namespace withy::bench
