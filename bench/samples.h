// Samples of a measurement: medians, quantiles, and the table with one JSON line that benchmarks
// print last. Pure but for Print. Neighbours: every benchmark.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace withy::bench {

// Median of samples with their smallest and largest. No samples: 0.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};
Spread Summarize(std::vector<double> samples);

// The smallest value that at least `share` of the samples do not exceed. No samples: 0.
double Quantile(std::vector<double> samples, double share);
double Mean(const std::vector<double>& samples);  // of one at least

// Samples by key, in the order of their first measurement.
class Samples {
 public:
  void Add(const std::string& key, double sample);
  bool Has(const std::string& key) const { return samples_.contains(key); }
  double Median(const std::string& key) const { return Summarize(samples_.at(key)).median; }
  const std::vector<double>& At(const std::string& key) const { return samples_.at(key); }
  const std::vector<std::string>& keys() const { return order_; }
  // A line for each key: median, smallest, largest, number.
  void Print(std::FILE* out) const;

 private:
  std::map<std::string, std::vector<double>> samples_;
  std::vector<std::string> order_;
};

}  // namespace withy::bench
