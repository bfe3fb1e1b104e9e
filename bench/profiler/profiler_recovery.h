// How soon calls are in time again when the board becomes slow under a running service. Neighbours:
// profiler.cc reports, profiler_service.h runs the service.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/profiler/profiler_service.h"
#include "withy/v1/types.pb.h"

namespace withy::bench {

// An SLO that the full model meets on the free board, and the lowest level also beside a busy
// process for each core; and what shows that. Calls of the full model beside them that are in time
// as well are those for which nothing had to be adapted.
struct RecoverySlo {
  v1::Slo slo;
  uint32_t lowest_percent = 0;  // the lowest level
  double full_free = 0;         // share of the full model's calls that meet it on the free board
  double full_slow = 0;         // beside the busy processes
  double lowest_slow = 0;       // share of the lowest level's, beside them
};

struct RecoveryFigures {
  // Calls behind the change until as many are in time again as the lowest level can have;
  // RecoveryCalls of profiler_figures.h.
  size_t recovery_calls = 0;
  double attainment_before = 0;  // share of calls in time before the change
  double attainment_after = 0;   // and of all behind it
  // Share of the control's calls at the lowest level that are in time behind the change, at most
  // what was before: no decision does better.
  double attainable = 0;
  std::vector<ProfiledService::Answer> answers = {};  // every call
};

// `calls` for each of four measurements. They teach the service: measure recovery on another one.
// Errors: those of calls; FAILED_PRECONDITION (the model has one level).
absl::StatusOr<RecoverySlo> FindRecoverySlo(ProfiledService& service, int calls);

// `before` calls on the free board, then as many beside a busy process for each core. These take
// turns with calls of `control`, another service with the same model, which answers at the lowest
// level: what busy processes leave of the board changes from second to second.
absl::StatusOr<RecoveryFigures> MeasureRecovery(ProfiledService& service, ProfiledService& control,
                                                const RecoverySlo& slo, int before);

}  // namespace withy::bench
