// How streamed weights are read. Neighbours: weight_stream.h, experts/expert_stream.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/disk_io.h"

namespace withy::engine {

struct WeightStreamOptions {
  // A wait for weights of which nothing arrives for this long is given up.
  int64_t stall_ns = 10 * kNanosPerSecond;
  // Past the page cache, where the file system can; false is for comparisons.
  bool direct = true;
  // Makes the disk queues; empty: DiskQueue::CreateBest. For tests.
  std::function<std::unique_ptr<DiskQueue>(uint32_t depth)> make_queue = {};
};

}  // namespace withy::engine
