// Times of kernels as CUPTI, CUDA's profiling interface, records them: a witness for the stamps
// that kernels write themselves (stamp-inl.cuh). It is loaded when it is first wanted. On Tegra it
// needs root, elsewhere the driver may; a second profiler, such as Nsight, keeps it away.
// Neighbour: stamp_check.h lays its times beside the stamps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/gpu/library_loader.h"

namespace withy::engine::cuda {

struct KernelTime {
  std::string name = {};  // mangled
  uint64_t started_ns = 0;
  uint64_t ended_ns = 0;  // of CUPTI's clock
};

// One of a process at a time, as CUPTI wants it. Records from Open() until its end.
class Cupti {
 public:
  // Errors: NOT_FOUND (no library, with the names tried), FAILED_PRECONDITION (one that lacks a
  // function, or that refuses: why, and the remedy).
  static absl::StatusOr<std::unique_ptr<Cupti>> Open(const LibraryLoader& loader = DynamicLoader());

  virtual ~Cupti() = default;
  // The kernels that ended since the last call, by their start. Errors: FAILED_PRECONDITION, what
  // CUPTI says.
  virtual absl::StatusOr<std::vector<KernelTime>> Take() = 0;
};

}  // namespace withy::engine::cuda
