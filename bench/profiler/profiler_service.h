// The profiler beside a running service: what profiler_agent takes, and whether spans are lost.
// Neighbours: profiler.cc reports, profiler_recovery.h changes the board under a service,
// own_service.h starts processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/service/own_service.h"

namespace withy::bench {

struct AgentFigures {
  double core_idle = 0;  // share of a core that profiler_agent takes while no call runs
  double core_load = 0;  // while callers keep the service busy
  uint64_t calls = 0;    // answered meanwhile
  uint64_t spans = 0;
  uint64_t dropped = 0;
};

// Not thread-safe.
class ProfiledService {
 public:
  // `model` empty: the pocket model. Errors: of starting processes; DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<ProfiledService>> Start(const std::string& model,
                                                                int threads);

  absl::StatusOr<AgentFigures> MeasureAgent(absl::Duration each);

  struct Answer {
    double ttft_ms = 0;
    double tpot_ms = 0;
    uint32_t level_percent = 100;  // as decided at first
    double predicted_ttft_ms = 0;
    double predicted_tpot_ms = 0;
    bool in_time = false;
  };
  // Asks prompt number `prompt` of the held-out ones. `level_percent` 0: the SLO decides. Errors:
  // those of the call.
  absl::StatusOr<Answer> Ask(uint64_t prompt, const v1::Slo& slo, uint32_t level_percent = 0);
  // Per cent, of the model that answers. Errors: of the call.
  absl::StatusOr<uint32_t> LowestLevel();

  int threads() const { return threads_; }

 private:
  ProfiledService() = default;
  absl::StatusOr<double> AgentCpuSeconds() const;

  std::unique_ptr<OwnService> service_;
  int threads_ = 2;
};

}  // namespace withy::bench
