#include "bench/samples.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace withy::bench {

Spread Summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return {median, samples.front(), samples.back()};
}

double Quantile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(samples.size())));
  const auto at = samples.begin() + std::clamp<int64_t>(rank - 1, 0, std::ssize(samples) - 1);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

double Mean(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

void Samples::Add(const std::string& key, double sample) {
  if (!samples_.contains(key)) order_.push_back(key);
  samples_[key].push_back(sample);
}

void Samples::Print(std::FILE* out) const {
  std::fprintf(out, "%-36s %10s %10s %10s %5s\n", "", "median", "low", "high", "n");
  for (const std::string& key : order_) {
    const Spread spread = Summarize(At(key));
    std::fprintf(out, "%-36s %10.4f %10.4f %10.4f %5zu\n", key.c_str(), spread.median, spread.low,
                 spread.high, At(key).size());
  }
}

}  // namespace withy::bench
