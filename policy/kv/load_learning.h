// What loads cost on this board: the worker's calibration and the disk's measured speed, corrected
// by every load that ends. Both sides take processors and memory from each other while they run at
// the same time, which no calibration of one alone knows. Pure. Neighbours: kv_load_plan.h has the
// costs, kv_load_progress.h measures a load; context_store/kv_cost_book.h keeps this under a lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "policy/kv/kv_load_plan.h"

namespace withy::policy {

// What a load that has ended has shown.
struct EndedLoad {
  LoadCosts planned;              // that its plan was made with
  size_t recomputed = 0;          // chunks that the worker has reported as computed
  double recompute_slowdown = 1;  // measured over planned time
  uint64_t read_bytes = 0;        // 0: a chunk could not be read
  double read_slowdown = 1;       // measured over planned time
};

// Not thread-safe.
class LoadLearning {
 public:
  explicit LoadLearning(const LoadCosts& costs) : costs_(costs), calibrated_(costs) {}

  // A worker has told its calibration: replaces all but the costs of reading.
  void Calibrate(const LoadCosts& worker);
  // The disk was measured.
  void SetReading(double fixed_ms, double mib_ms);
  void OnLoadEnded(const EndedLoad& load);

  // For the next plan.
  const LoadCosts& costs() const { return costs_; }

 private:
  LoadCosts costs_;
  LoadCosts calibrated_;  // recomputing as the worker told it
};

}  // namespace withy::policy
