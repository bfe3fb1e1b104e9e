// Measures the ways in which a GPU reaches memory, and checks each of them: what the host writes
// the GPU must read, and the other way round. On some boards host memory is read wrong, or slowly.
// Neighbours: gpu.h has the ways, model/devices.cc chooses by what is measured, `withyctl device`
// tells it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine::cuda {

std::string_view MemoryWayName(MemoryWay way);  // "device", "host", "managed", "registered"

struct WayResult {
  MemoryWay way = MemoryWay::kDevice;
  uint64_t bytes = 0;           // that were read at a time; 0: it was left out
  double bytes_per_second = 0;  // 0: not measured
  uint64_t wrong = 0;           // words that were not as they had been written
  std::string left_out = {};    // why
};

// Device memory and registered memory; managed memory, too, on boards that share memory with the
// GPU, or if `all`. Takes buffers of several times the L2, of at most 64 MiB where the host writes
// them, and no more than a quarter of what is free. Below 0.3 s. Errors: as Gpu::Allocate and
// Gpu::MapKv.
absl::StatusOr<std::vector<WayResult>> MeasureMemory(Gpu& gpu, bool all);

// Whether device memory and registered memory, where KV is, are read as they were written. Error:
// FAILED_PRECONDITION naming the way and how many words are wrong.
absl::Status CheckMemory(std::span<const WayResult> results);

// Where weights are read fastest: in device memory, unless another way is right and faster by a
// tenth.
MemoryWay WayForWeights(std::span<const WayResult> results);

}  // namespace withy::engine::cuda
