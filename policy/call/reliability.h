// How far off predictions have been of late, and the chance that follows for a limit. Pure.
// Neighbours: latency_learning.h feeds it, decide.h weighs settings by it.
#pragma once

#include <array>

#include "policy/constants.h"

namespace withy::policy {

// The distribution of log(measured / predicted). A few calls that something held up lie in its long
// tail; a mean and a spread would smear them over all calls. Two memories, a long and a short one:
// what foretold the last observations better counts for more, so that the spread of a board that
// has just become slow is known after a few calls, and a quiet one's is not that of the last few.
class Deviation {
 public:
  // Before anything was seen: normal.
  Deviation() : Deviation(0, kDeviationAtStart) {}
  Deviation(double mean, double standard_deviation);

  // `weight`: of what is seen among all that was, in the long memory. Range (0, 1).
  void Observe(double off, double weight);
  // The share that was at most so far off.
  double ShareUpTo(double off) const;
  // How late what is predicted to take `share` of its limit is in the mean, as a share of the
  // limit; what is in time counts as 0, one observation as kMostLateness at most.
  double MeanLateness(double share) const;

 private:
  static constexpr double kLowest = -0.625;  // what lies beyond either end counts as the end
  static constexpr double kWidth = 0.05;

  class Histogram {
   public:
    void Add(double off, double weight);
    double ShareUpTo(double off) const;
    double MeanLateness(double share) const;
    double ShareNear(double off) const;  // of a bin about `off`; never 0

    std::array<double, 34> shares = {};  // of calls, by kWidth from kLowest on; 1 together
  };

  double TrustInRecent() const;  // share

  Histogram all_;
  Histogram recent_;
  double recent_is_better_ = 0;  // log-likelihood ratio over the last observations
};

// Of TTFT and of TPOT. Independent of the load that predictions were made for: a call that leaves
// others room also leaves them room to be in time.
struct Reliability {
  Deviation ttft;
  Deviation tpot;
};

// The chance that what is predicted to take `predicted_ms` takes `limit_ms` at most.
double ChanceWithin(const Deviation& deviation, double predicted_ms, double limit_ms);

// How late it is then in the mean, as a share of the limit (Deviation::MeanLateness).
double LatenessOf(const Deviation& deviation, double predicted_ms, double limit_ms);

}  // namespace withy::policy
