// Answers held-out prompts with a target under a weight budget in the service's five processes, as
// an app asks it: what ships, with all that lies between. Neighbours: speculation_wall_pair.h does
// so in one process, speculation_wall_run.h starts it in a memory cgroup.
#pragma once

#include "absl/status/statusor.h"
#include "bench/speculation/speculation_wall_run.h"

namespace withy::bench {

// WallRun::contestant "service": the run's prompts, without open ones, in its ways, which take
// turns in one service. Without WallRun::draft no draft model is served. Errors: those of
// ParseWay and OwnService.
absl::StatusOr<WallResult> RunService(const WallRun& run);

}  // namespace withy::bench
