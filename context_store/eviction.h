// Which KV goes when the arena is full: a pure policy. KV is only a cache of text, so all it costs
// is time. Neighbours: lease_table.cc carries the plan out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace withy::context_store {

// A context that no lease holds.
struct IdleContext {
  uint64_t last_used = 0;  // any clock that only goes up
  uint32_t chunks = 0;     // resident, from chunk 0 on
};

struct Eviction {
  uint32_t context = 0;      // index into what was given
  uint32_t keep_chunks = 0;  // the first so many stay
};

// Drops `chunks` chunks at least: least recently used context first, from its tail, because a chunk
// is of use only with all chunks before it. Empty when the contexts do not have that many between
// them. Source: LLMS section 3.4 (LCTRU), here with one precision, so that only recency decides.
std::vector<Eviction> PlanEviction(std::span<const IdleContext> contexts, uint64_t chunks);

}  // namespace withy::context_store
