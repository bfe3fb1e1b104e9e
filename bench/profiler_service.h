// The profiler beside a running service: what profiler_agent takes, whether spans are lost, and how
// soon answers are in time again when the board becomes slow. Neighbours: profiler.cc reports,
// processes.h starts processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/processes.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {

struct AgentFigures {
  double core_idle = 0;  // share of a core that profiler_agent takes while no call runs
  double core_load = 0;  // while callers keep the service busy
  uint64_t calls = 0;    // answered meanwhile
  uint64_t spans = 0;
  uint64_t dropped = 0;
};

struct RecoveryFigures {
  size_t recovery_calls = 0;       // RecoveryCalls of profiler_figures.h
  double attainment_before = 0;    // share of calls in time before the board became slow
  double attainment_after = 0;     // and behind the recovery
  std::vector<bool> in_time = {};  // every call
};

// Not thread-safe.
class ProfiledService {
 public:
  // `model` empty: the pocket model. Errors: of starting processes; DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<ProfiledService>> Start(const std::string& model,
                                                                int threads);

  absl::StatusOr<AgentFigures> MeasureAgent(absl::Duration each);
  // `before` calls on the free board, then as many beside a busy process for each core.
  absl::StatusOr<RecoveryFigures> MeasureRecovery(int before);

 private:
  struct Answer {
    double ttft_ms = 0;
    double tpot_ms = 0;
    bool in_time = false;
  };

  ProfiledService() = default;
  absl::StatusOr<Answer> Ask(uint64_t prompt, const v1::Slo& slo);
  absl::StatusOr<v1::Slo> FindSlo();
  absl::StatusOr<double> AgentCpuSeconds() const;

  TemporaryDirectory directory_;
  std::unique_ptr<Processes> processes_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
  int threads_ = 2;
};

}  // namespace withy::bench
