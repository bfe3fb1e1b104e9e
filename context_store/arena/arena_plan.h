// Finds how large the KV arena may be: observes limits, files and the kept arena, and asks
// policy/kv/arena_size.h. Neighbour: process.cc.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy::v1 {
class Config;
}  // namespace withy::v1

namespace withy::context_store {

struct ArenaPlan {
  uint64_t bytes = 0;
  std::string sum;  // why it is smaller than store.arena_bytes; empty: it is not
};

// `kept`: the arena that systemd kept, or invalid. If memory is still short, its size stays, so
// that its KV does. `root` is prepended to /proc and /sys. Errors: RESOURCE_EXHAUSTED with the sum
// and the remedies.
absl::StatusOr<ArenaPlan> PlanArena(const v1::Config& config, const UniqueFd& kept,
                                    const std::string& root = "");

}  // namespace withy::context_store
