// How fast the step under way is, from its first part. A fed state machine; not thread-safe.
// Neighbour: prompt_level.h uses it.
#pragma once

#include <array>
#include <cstddef>

#include "policy/constants.h"

namespace withy::policy {

// Estimates how long a step takes from looks at its first part. A board may be slower by half for
// as long as a call takes and faster again after the next pause: the steps before it do not tell
// (docs/benchmarks.md, Slow passes).
class StepPaceEstimate {
 public:
  // The next of kStepLooks; 1: there is none.
  double next_look() const { return next_ < kStepLooks.size() ? kStepLooks[next_] : 1; }
  // `done` of the step's work, at least next_look(), has taken `ms` so far.
  void Look(double done, double ms);
  // Time of the whole step at the pace so far: the median between looks, the lower one of two,
  // since a core may be taken away for a moment. 0: fewer than two times between looks are known.
  double WholeMs() const;
  double LeftMs() const { return (1 - done_) * WholeMs(); }

 private:
  size_t next_ = 0;
  std::array<double, kStepLooks.size()> wholes_ms_ = {};
  size_t known_ = 0;
  double done_ = 0;  // at the last look
  double ms_ = 0;
};

}  // namespace withy::policy
