// Stands in for computing: threads that use up processor time, as an engine's threads share out the
// work of a pass. Neighbour: stand_in_worker.h recomputes KV with it while the store reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace withy::bench {

// One Run at a time.
class CpuWork {
 public:
  explicit CpuWork(int threads);
  ~CpuWork();
  CpuWork(const CpuWork&) = delete;
  CpuWork& operator=(const CpuWork&) = delete;

  // Returns when the threads have used `ms` of processor time each on average: on cores of their
  // own that takes `ms`, and longer where something else runs on them. They have the priority of
  // threads that compute.
  void Run(double ms);

 private:
  void Help();
  void UseSlices();

  const int threads_;
  std::atomic<int64_t> slices_left_{0};
  absl::Mutex mutex_;
  uint64_t runs_ ABSL_GUARDED_BY(mutex_) = 0;
  int helping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace withy::bench
