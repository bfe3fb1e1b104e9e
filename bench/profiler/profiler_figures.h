// The arithmetic of `./withy bench profiler`. Pure. Neighbours: profiler_engine.h,
// profiler_kernels.h and profiler_service.h measure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::bench {

// Mean of samples without the tenth at either end, and the upper end of its 95 % confidence
// interval (normal approximation). No samples: 0.
struct MeanBound {
  double mean = 0;
  double upper95 = 0;
};
MeanBound TrimmedMean(std::vector<double> samples);

// LM-Meter eq. 1 as a share: 1 - |measured - truth| / truth. A truth that is not above zero: 0.
double Accuracy(double measured, double truth);

// A pass that was predicted before it ran: of a prompt, or of the steps behind it.
struct PredictedPass {
  int32_t prompt = 0;
  bool held_out = false;  // the prompt
  int32_t step = 0;       // behind the prompt, from 0; -1: the prompt's own pass
  int32_t calls = 0;      // in the pass: one row each, but for the prompt's own
  int32_t depth = 0;      // tokens of all their contexts
  double predicted_ms = 0;
  double took_ms = 0;
  // The first step behind a prompt finds other weights in the caches than the next ones.
  bool is_steady_step() const { return step > 0; }
};

// |predicted / measured - 1| of the steady steps behind held-out prompts, of `calls` calls; 0: of
// any number.
std::vector<double> PredictionErrors(std::span<const PredictedPass> passes, int32_t calls = 0);

// The same where what is predicted of each pass is the median of its like: of all steady steps
// behind the same prompt, those to come as well. What one pass deviates from the next by cannot be
// predicted: this is what a prediction by shape alone can reach on the machine as it was.
std::vector<double> PredictionFloor(std::span<const PredictedPass> passes, int32_t calls = 0);

// Calls after `change` until calls are in time again as before: the number of the first call from
// which on, over the next `window` calls, the share in time is at least `share`. All calls behind
// `change`: never.
size_t RecoveryCalls(const std::vector<bool>& in_time, size_t change, size_t window, double share);

}  // namespace withy::bench
