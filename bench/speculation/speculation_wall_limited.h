// Runs this program again as one contestant in a memory cgroup with a limit. Neighbours:
// speculation_wall_measure.h compares what it gives, memory_cgroup.h is the group.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/speculation/speculation_wall_run.h"

namespace withy::bench {

inline constexpr uint64_t kUnlimited = uint64_t{1} << 50;

// Drops the run's files from the page cache first: pages that another group has read would be free
// of charge. Errors: those of cgroups (which need root), fork and exec; INTERNAL naming the
// contestant, if it fails or is killed under the limit.
absl::StatusOr<WallResult> RunLimited(const WallRun& run, uint64_t limit_bytes);

}  // namespace withy::bench
