// How large the KV arena is where memory is limited: it fits what the kernel allows, with the
// weights and buffers of the processes that share the limit. Pure. Driven by
// context_store/arena/arena_plan.cc, which finds the limits and the parts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace withy::policy {

// What memory is needed for, in bytes.
struct MemoryParts {
  uint64_t arena = 0;          // as configured
  uint64_t weights = 0;        // that the workers keep in memory
  uint64_t store_buffers = 0;  // of context_store, beside the arena
  uint64_t other_buffers = 0;  // of the four other processes, beside weights
};

struct MemoryBound {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;  // at present, without what can be taken back
  bool alone = false;       // weights and other buffers are not charged to it
  std::string name = {};
};

// Less than this serves nobody: a smaller arena is used only if it is configured.
inline constexpr uint64_t kLeastArenaBytes = uint64_t{8} << 20;

struct ArenaSize {
  uint64_t bytes = 0;  // 0: not even the least one fits
  // The parts, their sum and the limit that it exceeds; empty if all fits.
  std::string sum;
};

// The configured arena if all parts fit below every bound; else what is left for it, in multiples
// of 2 MiB. The parts of other processes give way to the least arena: weights can be read from disk
// in pieces, and whether the others are charged to a bound is not known before they run.
ArenaSize FitArena(const MemoryParts& parts, std::span<const MemoryBound> bounds);

}  // namespace withy::policy
