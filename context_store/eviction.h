// Decides which KV leaves the arena when it is full. Pure. KV is a cache of text, so an eviction
// costs only time. Neighbour: lease_table.cc executes the plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace withy::context_store {

// A context without a lease.
struct IdleContext {
  uint64_t last_used = 0;             // any monotonic clock
  std::vector<uint64_t> chunks = {};  // bytes of each chunk in the arena, from chunk 0 on; 0: none
};

struct Eviction {
  uint32_t context = 0;  // index into the given contexts
  uint32_t chunk = 0;
  uint64_t bytes = 0;
};

// All chunks in the order in which they leave: least recently used context first, from its tail,
// because a chunk is useless without all chunks before it. Source: LLMS section 3.4 (LCTRU).
std::vector<Eviction> EvictionOrder(std::span<const IdleContext> contexts);

}  // namespace withy::context_store
