// The arithmetic of `withyctl profile study`. Pure. Neighbours: the studies measure, report.h
// presents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace withy::cli {

// Median and quartiles of samples, interpolated between neighbours. No samples: all zero.
struct Spread {
  double median = 0;
  double low = 0;   // a quarter of the samples is below
  double high = 0;  // a quarter is above
};
Spread SpreadOf(std::vector<double> samples);

// Interpolated quantile, `share` in [0, 1]. No samples: 0.
double QuantileOf(std::vector<double> samples, double share);

// Least squares: y = intercept + slope * x. Fewer than two different x: slope 0.
struct LinearFit {
  double intercept = 0;
  double slope = 0;
  double r_squared = 0;  // share of y's variance that the line explains; 1 if y does not vary
  double At(double x) const { return intercept + slope * x; }
};
LinearFit FitLine(std::span<const std::pair<double, double>> points);

// LM-Meter eq. 3: the harmonic mean of three ratios of a quantised model to the original: its
// quality (quantised over original), and its speed in prefill and decode (latency of the original
// over that of the quantised one). 0 if one of them is not above zero.
double HarmonicQuantization(double quality, double prefill_speed, double decode_speed);

// Kullback-Leibler divergence of `p` from `q`, in nats; both are scaled to sum up to 1. Infinite if
// p has weight where q has none; 0 if either is empty.
double Divergence(std::span<const double> p, std::span<const double> q);

// Counts of `lengths` in `bins` ranges of equal width from the shortest to the longest.
std::vector<int64_t> Histogram(std::span<const int32_t> lengths, std::span<const int32_t> counted,
                               int bins);

// LM-Meter section 5.1, Subset sampling: indices, ascending, of `count` of the `lengths` whose
// histogram of `bins` bins has the least Kullback-Leibler divergence from that of all. The paper
// does not print its algorithm; here the counts of the bins are the optimum (the divergence is a
// sum of convex functions of them, so that taking the cheapest next one is exact), and within a bin
// `seed` chooses. `count` above the number of lengths: all of them.
std::vector<size_t> MatchedSubset(std::span<const int32_t> lengths, size_t count, int bins,
                                  uint64_t seed);
// `count` indices, ascending, drawn uniformly.
std::vector<size_t> RandomSubset(size_t all, size_t count, uint64_t seed);

// Divergence of the histogram of the chosen lengths from that of all, in nats.
double SubsetDivergence(std::span<const int32_t> lengths, std::span<const size_t> chosen, int bins);

// The x in [low, high] at which `f`, which grows with x, comes to `target`: by bisection, to within
// a thousandth of the range's width. `low` or `high` if it does not come to it.
double Solve(double low, double high, double target, const std::function<double(double)>& f);

}  // namespace withy::cli
