// Which chunks leave the arena when it is full. Pure. The text of a context is never lost, so an
// eviction costs only the time that it takes to bring the KV back. Neighbours: kv_load_plan.h
// brings chunks back, context_store carries the actions out.
//
// LCTRU (least compression-tolerable and recently used): the context used longest ago leaves first.
// Of its chunks those with a copy on disk go first, then those with the most bits: when a part of
// it leaves, few heavy chunks are missing instead of many light ones, and to ask the disk for a
// heavy chunk, or to recompute it, takes no longer than for a light one. Of equals the later
// positions go first, so that a prefix stays. LLMS prints the other order: the bits first, then the
// use. As the first and the latest chunks of every context have 8 bits, all contexts lose those
// before any context loses another. Hardly any switch is then without a wait for the disk, and what
// was used a moment ago is read again: the mean wait is 1.06 to 3.2 times as long
// (KvEvictionTest.LctruSwitchesFaster).
//
// Nothing is written for it: what has no copy was not worth writing, or is being written. Dropping
// such a chunk means to recompute it, which may take a hundred times as long as reading. So such
// chunks come last: from the context used longest ago, and from its end, so that what stays of a
// context is a prefix that needs nothing else.
//
// Source: LLMS section 3.4 ii. Ours turns recency and bits around, and adds copies and the order of
// equals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/kv/kv_place.h"

namespace withy::policy {

// A resident chunk of a context without a lease.
struct EvictableChunk {
  uint32_t context = 0;    // equal for the chunks of one context
  uint32_t position = 0;   // in the context, in chunks
  uint64_t last_used = 0;  // any clock that does not decrease
  KvResident place;
  uint64_t bytes = 0;  // in the arena
};

enum class EvictionPolicy {
  kLctru,
  // For comparisons. Both take chunks without a copy, too.
  kChunkLru,    // the chunk used longest ago; of equals the latest position
  kContextLru,  // the whole context whose latest use is the longest ago
};

// Indices of the chunks to drop, in this order, which free at least `bytes_to_free`; none if the
// chunks have fewer bytes in total.
std::vector<size_t> PlanKvEviction(std::span<const EvictableChunk> chunks, uint64_t bytes_to_free,
                                   EvictionPolicy policy = EvictionPolicy::kLctru);

}  // namespace withy::policy
