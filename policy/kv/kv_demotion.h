// Which KV of idle contexts is stored in fewer bits because the arena needs room that no exact
// measure makes. Pure. Lossless before lossy: what can be read back bit for bit leaves first
// (kv_eviction.h), and what the disk takes is written and leaves. Only what remains is asked here,
// before anything is dropped that would have to be computed again.
//
// Contexts lose bits in the order in which they would be evicted: the one used longest ago first,
// and another one only when that has reached the ratio. Within a context the chunks that attention
// reads least lose them (kv_precision.h). So much and no more is freed as is asked for, up to one
// step of one chunk.
//
// Source: LLMS section 3.2 compresses every context to a global ratio when its call has ended. Here
// the ratio is the bound of what may be lost, and no target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/kv/kv_precision.h"

namespace withy::policy {

// Whether chunk `chunk` of a context of `chunks` keeps all its bits, however rarely it is read.
bool StaysExact(size_t chunk, size_t chunks);

struct KvDemotion {
  size_t context = 0;  // index into the given contexts
  size_t chunk = 0;    // likewise, of its chunks
  KvFormatIndex format = 0;
  bool operator==(const KvDemotion&) const = default;
};

struct DemotionPlan {
  std::vector<KvDemotion> demotions;  // in this order
  uint64_t freed_bytes = 0;           // of resident chunks
};

// `contexts`: idle ones, used longest ago first; the chunks of each, oldest first, those that may
// not lose bits pinned. `ratio`: the least bytes that a context may be brought to, as a share of
// its bytes in format 0, > 0. Frees at least `bytes_to_free` if the ratio allows it, else what it
// allows.
DemotionPlan PlanDemotions(std::span<const KvFormatCost> formats,
                           std::span<const std::vector<DensityChunk>> contexts, double ratio,
                           uint64_t bytes_to_free,
                           PrecisionPolicy policy = PrecisionPolicy::kDensity);

}  // namespace withy::policy
