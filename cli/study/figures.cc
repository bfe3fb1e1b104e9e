#include "cli/study/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace withy::cli {
namespace {

constexpr int kBisections = 20;

struct BinScale {
  double low = 0;
  double width = 1;
  int bins = 1;

  size_t Of(int32_t length) const {
    const auto bin = static_cast<int>((length - low) / width);
    return static_cast<size_t>(std::clamp(bin, 0, bins - 1));
  }
};

BinScale ScaleOf(std::span<const int32_t> lengths, int bins) {
  BinScale scale;
  scale.bins = std::max(bins, 1);
  if (lengths.empty()) return scale;
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  scale.low = *least;
  scale.width = std::max((*most - *least + 1.0) / scale.bins, 1e-9);
  return scale;
}

double SortedQuantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::vector<double> Floats(const std::vector<int64_t>& counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

double QuantileOf(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  return SortedQuantile(samples, share);
}

Spread SpreadOf(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {SortedQuantile(samples, 0.5), SortedQuantile(samples, 0.25),
          SortedQuantile(samples, 0.75)};
}

LinearFit FitLine(std::span<const std::pair<double, double>> points) {
  LinearFit fit;
  if (points.empty()) return fit;
  const auto count = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) {
    mean_x += x / count;
    mean_y += y / count;
  }
  double xx = 0, xy = 0, yy = 0;
  for (const auto& [x, y] : points) {
    xx += (x - mean_x) * (x - mean_x);
    xy += (x - mean_x) * (y - mean_y);
    yy += (y - mean_y) * (y - mean_y);
  }
  fit.slope = xx > 0 ? xy / xx : 0;
  fit.intercept = mean_y - fit.slope * mean_x;
  fit.r_squared = yy > 0 ? (xx > 0 ? xy * xy / (xx * yy) : 0) : 1;
  return fit;
}

double HarmonicQuantization(double quality, double prefill_speed, double decode_speed) {
  if (!(quality > 0 && prefill_speed > 0 && decode_speed > 0)) return 0;
  return 3 / (1 / quality + 1 / prefill_speed + 1 / decode_speed);
}

double Divergence(std::span<const double> p, std::span<const double> q) {
  const double all_p = std::accumulate(p.begin(), p.end(), 0.0);
  const double all_q = std::accumulate(q.begin(), q.end(), 0.0);
  if (!(all_p > 0 && all_q > 0)) return 0;
  double sum = 0;
  for (size_t i = 0; i < std::min(p.size(), q.size()); ++i) {
    if (!(p[i] > 0)) continue;
    if (!(q[i] > 0)) return std::numeric_limits<double>::infinity();
    sum += p[i] / all_p * std::log(p[i] / all_p / (q[i] / all_q));
  }
  return std::max(sum, 0.0);
}

std::vector<int64_t> Histogram(std::span<const int32_t> lengths, std::span<const int32_t> counted,
                               int bins) {
  const BinScale scale = ScaleOf(lengths, bins);
  std::vector<int64_t> counts(static_cast<size_t>(scale.bins), 0);
  for (const int32_t length : counted) ++counts[scale.Of(length)];
  return counts;
}

std::vector<size_t> MatchedSubset(std::span<const int32_t> lengths, size_t count, int bins,
                                  uint64_t seed) {
  count = std::min(count, lengths.size());
  const BinScale scale = ScaleOf(lengths, bins);
  std::vector<std::vector<size_t>> members(static_cast<size_t>(scale.bins));
  for (size_t i = 0; i < lengths.size(); ++i) members[scale.Of(lengths[i])].push_back(i);
  // x of `count` taken from a bin that has the share f of all cost x * log(x / (count * f)).
  std::vector<size_t> taken(members.size(), 0);
  const auto cost = [&](size_t bin, size_t x) {
    if (x == 0) return 0.0;
    const double expected = static_cast<double>(count) * static_cast<double>(members[bin].size()) /
                            static_cast<double>(lengths.size());
    return static_cast<double>(x) * std::log(static_cast<double>(x) / expected);
  };
  for (size_t i = 0; i < count; ++i) {
    size_t best = members.size();
    double least = 0;
    for (size_t bin = 0; bin < members.size(); ++bin) {
      if (taken[bin] == members[bin].size()) continue;
      const double added = cost(bin, taken[bin] + 1) - cost(bin, taken[bin]);
      if (best == members.size() || added < least) {
        best = bin;
        least = added;
      }
    }
    ++taken[best];
  }
  std::vector<size_t> chosen;
  std::mt19937_64 random(seed);
  for (size_t bin = 0; bin < members.size(); ++bin) {
    std::sample(members[bin].begin(), members[bin].end(), std::back_inserter(chosen), taken[bin],
                random);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<size_t> RandomSubset(size_t all, size_t count, uint64_t seed) {
  std::vector<size_t> indices(all);
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::vector<size_t> chosen;
  std::mt19937_64 random(seed);
  std::sample(indices.begin(), indices.end(), std::back_inserter(chosen), count, random);
  return chosen;
}

double SubsetDivergence(std::span<const int32_t> lengths, std::span<const size_t> chosen,
                        int bins) {
  std::vector<int32_t> counted;
  for (const size_t i : chosen) counted.push_back(lengths[i]);
  return Divergence(Floats(Histogram(lengths, counted, bins)),
                    Floats(Histogram(lengths, lengths, bins)));
}

double Solve(double low, double high, double target, const std::function<double(double)>& f) {
  if (f(low) >= target) return low;
  if (f(high) <= target) return high;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (f(middle) < target ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace withy::cli
