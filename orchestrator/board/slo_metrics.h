// Whether the calls of each app met their SLO, as metrics and spans. Neighbours: metrics.h has the
// orchestrator's other metrics; profiler_agent/ computes error budgets from these.
//
//   counters  withy_slo_app_calls_total{app}, withy_slo_app_missed_total{app}
//   spans     slo_ttft, slo_tpot, slo_end_to_end: each lasts as long as the SLO allowed; value 1 if
//             the call met its SLO, else 0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "policy/call/call_targets.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {

// A finished call with an SLO.
struct JudgedCall {
  uint64_t id = 0;
  policy::CallTargets targets = {};
  int64_t first_token_ns = 0;
  uint32_t tokens = 0;
  bool met = false;
};

// `app` within the bytes of a metric's label; names that begin alike stay apart. Pure.
std::string MetricLabelOf(std::string_view app);

// Lives beside its recorder. Thread-safe.
class SloMetrics {
 public:
  // Apps with figures of their own; those that come later share the label "other".
  static constexpr size_t kApps = 24;

  explicit SloMetrics(telemetry::Recorder& recorder);

  void Judged(std::string_view app, const JudgedCall& call);

 private:
  struct App {
    telemetry::Counter* calls;
    telemetry::Counter* missed;
  };
  const App& Of(std::string_view app);

  telemetry::Recorder& recorder_;
  const telemetry::NameId ttft_;
  const telemetry::NameId tpot_;
  const telemetry::NameId end_to_end_;
  absl::Mutex mutex_;
  std::map<std::string, App, std::less<>> apps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::orchestrator
