// The orchestrator's counters and gauges, made once at start.
#pragma once

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "orchestrator/board/slo_metrics.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {

// Lives beside its recorder. Thread-safe.
class Metrics {
 public:
  explicit Metrics(telemetry::Recorder& recorder)
      : slo_(recorder),
        slo_met_(Slo(recorder, "true")),
        slo_missed_(Slo(recorder, "false")),
        running_(recorder.gauge({.name = "withy_calls_running", .help = "Calls with a worker."})),
        queued_(recorder.gauge(
            {.name = "withy_calls_queued", .help = "Calls admitted, not yet with a worker."})),
        replayed_(recorder.counter(
            {.name = "withy_calls_replayed_total",
             .help = "Calls answered with the stored result of their request_id."})),
        retried_(recorder.counter({.name = "withy_calls_retried_total",
                                   .help = "Calls given to a worker again after it went away."})),
        pruned_words_(recorder.counter({.name = "withy_pruned_words_total",
                                        .help = "Words that prompts were shortened by."})) {
    const char* const reasons[kReasons] = {
        "", "full_meets_slo", "tlm", "latency_model", "best_effort", "fixed_by_caller"};
    for (int reason = 1; reason < kReasons; ++reason) {
      decided_[reason] = &recorder.counter({.name = "withy_decisions_total",
                                            .help = "Calls that were decided, by reason.",
                                            .label_key = "reason",
                                            .label_value = reasons[reason]});
    }
    for (int code = 0; code < kCodes; ++code) {
      const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      ended_[code] = &recorder.counter({.name = "withy_calls_total",
                                        .help = "Generate calls that ended, by status code.",
                                        .label_key = "code",
                                        .label_value = name});
    }
  }

  void Ended(const absl::Status& status) {
    const int code = status.raw_code();
    ended_[code >= 0 && code < kCodes ? code : static_cast<int>(absl::StatusCode::kUnknown)]->Add();
  }
  void SloJudged(std::string_view app, const JudgedCall& call) {
    (call.met ? slo_met_ : slo_missed_).Add();
    slo_.Judged(app, call);
  }
  void SetLoad(uint32_t running, uint32_t queued) {
    running_.Set(running);
    queued_.Set(queued);
  }
  void Decided(int reason, uint32_t pruned_words) {
    if (reason > 0 && reason < kReasons) decided_[reason]->Add();
    pruned_words_.Add(pruned_words);
  }
  void Replayed() { replayed_.Add(); }
  void Retried() { retried_.Add(); }

 private:
  static constexpr int kCodes = 17;
  static constexpr int kReasons = 6;  // of DecisionReason
  static telemetry::Counter& Slo(telemetry::Recorder& recorder, const char* met) {
    return recorder.counter({.name = "withy_slo_calls_total",
                             .help = "Calls with an SLO that finished, by whether it was met.",
                             .label_key = "met",
                             .label_value = met});
  }

  SloMetrics slo_;
  telemetry::Counter& slo_met_;
  telemetry::Counter& slo_missed_;
  telemetry::Gauge& running_;
  telemetry::Gauge& queued_;
  telemetry::Counter& replayed_;
  telemetry::Counter& retried_;
  telemetry::Counter& pruned_words_;
  std::array<telemetry::Counter*, kReasons> decided_{};
  std::array<telemetry::Counter*, kCodes> ended_{};
};

}  // namespace withy::orchestrator
