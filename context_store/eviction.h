// Decides which KV to evict when the arena is full. Pure. KV is a cache of text, so an eviction
// costs only time. Neighbour: lease_table.cc executes the plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace withy::context_store {

// A context without a lease.
struct IdleContext {
  uint64_t last_used = 0;  // any monotonic clock
  uint32_t chunks = 0;     // resident, from chunk 0 on
};

struct Eviction {
  uint32_t context = 0;      // index into the given contexts
  uint32_t keep_chunks = 0;  // number of leading chunks to keep
};

// Evicts at least `chunks` chunks: least recently used context first, from its tail, because a
// chunk is useless without all chunks before it. Empty if the contexts have fewer chunks in total.
// Source: LLMS section 3.4 (LCTRU); with a single precision only recency decides.
std::vector<Eviction> PlanEviction(std::span<const IdleContext> contexts, uint64_t chunks);

}  // namespace withy::context_store
