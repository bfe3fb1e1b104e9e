// Prometheus metrics: the agent's histograms and the counters and gauges of all processes as metric
// families, and the HTTP server for them. Names and units follow Prometheus' rules.
//
//   histograms  withy_phase_duration_seconds{process,phase},
//               withy_kernel_duration_seconds{process,kernel},
//               withy_ttft_seconds, withy_tpot_seconds, withy_end_to_end_seconds,
//               withy_queue_seconds, withy_prompt_tokens, withy_answer_tokens {process}
//               withy_slo_limit_seconds{process,limit}: what the SLOs of calls allowed
//   gauges      withy_up, withy_process_start_time_seconds, withy_span_rings {process}
//               withy_slo_objective_ratio; withy_slo_attainment_ratio,
//               withy_slo_error_budget_ratio {app}: since the orchestrator started
//   counters    withy_spans_total, withy_spans_dropped_total, withy_spans_malformed_total,
//               withy_spans_untimed_total, withy_clock_faults_total,
//               withy_telemetry_overflows_total {process}
//               withy_profile_folded_spans_total: their name had no room for a histogram
//   and all counters and gauges that a process registered, with the label process
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "profiler_agent/agent.h"
#include "profiler_agent/pages.h"

namespace withy::profiler_agent {

// Builds the families of one moment. Each of `known_processes` has a withy_up even without a ring
// file. A registered metric is left out if its name is built in, or another process uses the name
// with another type. Pure.
struct FamilyInput {
  std::vector<PhaseRow> phases = {};
  std::vector<SizeRow> sizes = {};
  std::vector<telemetry::SourceInfo> sources = {};
  std::vector<std::string> known_processes = {};
  uint64_t folded_spans = 0;
  double slo_objective = 0.99;  // share of the calls with an SLO that are to meet it
};
std::vector<prometheus::MetricFamily> MakeFamilies(const FamilyInput& input);
// Without the histograms of single phases and kernels, which are most of the series.
std::vector<prometheus::MetricFamily> Lean(std::vector<prometheus::MetricFamily> families);

// What apps that set SLOs got, from the counters of the orchestrator.
struct AppSlo {
  std::string app;
  double calls = 0;
  double missed = 0;
  double attainment() const { return calls > 0 ? 1 - missed / calls : 1; }
  // The part of the misses that the objective allows which is left; negative when exceeded.
  double BudgetLeft(double objective) const {
    return calls > 0 ? 1 - missed / (calls * (1 - objective)) : 1;
  }
};
std::vector<AppSlo> AppSlos(const std::vector<telemetry::SourceInfo>& sources);

// The five processes, sorted.
const std::vector<std::string>& KnownProcesses();

// Adapts an agent; records each scrape as a span. Both arguments are borrowed and must outlive it.
class Exporter final : public prometheus::Collectable {
 public:
  Exporter(const Agent& agent, telemetry::Recorder& recorder, double slo_objective)
      : agent_(agent),
        recorder_(recorder),
        scrape_(recorder.Name("scrape")),
        slo_objective_(slo_objective) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Agent& agent_;
  telemetry::Recorder& recorder_;
  const telemetry::NameId scrape_;
  const double slo_objective_;
};

// In Prometheus' text format; `lean`: as Lean.
std::string MetricsText(const prometheus::Collectable& collectable, bool lean);

// Serves GET /metrics and /metrics/lean, and further pages, over HTTP on its own thread until
// destruction; PageOptions() has its limits.
class MetricsServer {
 public:
  // `listen` is HOST:PORT (port 0: any free one). Errors: INVALID_ARGUMENT (not HOST:PORT, or a
  // host that does not resolve), ALREADY_EXISTS (the port is taken), PERMISSION_DENIED,
  // UNAVAILABLE; each names the address and the remedy.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      std::string_view listen, std::shared_ptr<prometheus::Collectable> collectable,
      std::vector<Page> further = {}, const http::ServerOptions& options = PageOptions());
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // The listen address with the actual port number.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::unique_ptr<http::Server> pages_;
};

}  // namespace withy::profiler_agent
