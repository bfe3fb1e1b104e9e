// What reading, recomputing and rounding KV cost on this board, under a lock of its own. Decided in
// policy/kv/load_learning.h. Neighbours: the worker tells its calibration when it attaches, the
// disk is measured at the first start, and loads correct both.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "context_store/disk/kv_costs.h"
#include "policy/kv/load_learning.h"

namespace withy::context_store {

// Thread-safe; its lock is taken last.
class KvCostBook {
 public:
  explicit KvCostBook(const KvCosts& costs) : loads_(costs.load), errors_(costs.errors) {}

  // What the attached worker knows of its model: replaces all but the costs of reading.
  void SetWorkerCosts(const KvCosts& costs) {
    absl::MutexLock lock(&mutex_);
    loads_.Calibrate(costs.load);
    errors_ = costs.errors;
  }
  void SetReading(double fixed_ms, double mib_ms) {
    absl::MutexLock lock(&mutex_);
    loads_.SetReading(fixed_ms, mib_ms);
  }
  void OnLoadEnded(const policy::EndedLoad& load) {
    absl::MutexLock lock(&mutex_);
    loads_.OnLoadEnded(load);
  }

  // For the plan of a load.
  policy::LoadCosts loads() const {
    absl::MutexLock lock(&mutex_);
    return loads_.costs();
  }
  FormatErrors errors() const {
    absl::MutexLock lock(&mutex_);
    return errors_;
  }

 private:
  mutable absl::Mutex mutex_;
  policy::LoadLearning loads_ ABSL_GUARDED_BY(mutex_);
  FormatErrors errors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::context_store
