// The arithmetic of `./withy bench profiler`. Pure. Neighbours: profiler_engine.h,
// profiler_kernels.h and profiler_service.h measure.
#pragma once

#include <cstddef>
#include <vector>

namespace withy::bench {

// Mean of samples without the tenth at either end, and the upper end of its 95 % confidence
// interval (normal approximation). No samples: 0.
struct MeanBound {
  double mean = 0;
  double upper95 = 0;
};
MeanBound TrimmedMean(std::vector<double> samples);

// The smallest value that at least `share` of the samples do not exceed. No samples: 0.
double Quantile(std::vector<double> samples, double share);

// LM-Meter eq. 1 as a share: 1 - |measured - truth| / truth. A truth that is not above zero: 0.
double Accuracy(double measured, double truth);

// Calls after `change` until calls are in time again as before: the number of the first call from
// which on, over the next `window` calls, the share in time is at least `share`. All calls behind
// `change`: never.
size_t RecoveryCalls(const std::vector<bool>& in_time, size_t change, size_t window, double share);

}  // namespace withy::bench
