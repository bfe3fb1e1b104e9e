// Prometheus metrics: the agent's histograms and the counters and gauges of all processes as metric
// families, and the HTTP server for them. Names and units follow Prometheus' rules.
//
//   histograms  withy_phase_duration_seconds{process,phase},
//               withy_kernel_duration_seconds{process,kernel},
//               withy_ttft_seconds, withy_tpot_seconds, withy_end_to_end_seconds {process}
//   gauges      withy_up, withy_process_start_time_seconds, withy_span_rings {process}
//   counters    withy_spans_total, withy_spans_dropped_total, withy_spans_malformed_total,
//               withy_telemetry_overflows_total {process}
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
#include "profiler_agent/http_listener.h"

namespace withy::profiler_agent {

// Builds the families of one moment. Each of `known_processes` has a withy_up even without a ring
// file. A registered metric is left out if its name is built in, or another process uses the name
// with another type. Pure.
std::vector<prometheus::MetricFamily> MakeFamilies(
    const std::vector<PhaseRow>& phases, const std::vector<telemetry::SourceInfo>& sources,
    const std::vector<std::string>& known_processes);

// Adapts an agent; records each scrape as a span. Both arguments are borrowed and must outlive it.
class Exporter final : public prometheus::Collectable {
 public:
  Exporter(const Agent& agent, telemetry::Recorder& recorder)
      : agent_(agent), recorder_(recorder), scrape_(recorder.Name("scrape")) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Agent& agent_;
  telemetry::Recorder& recorder_;
  const telemetry::NameId scrape_;
};

// Serves GET /metrics over HTTP on its own thread until destruction; http_listener.h documents its
// limits.
class MetricsServer {
 public:
  // `listen` is HOST:PORT (port 0: any free one). Errors: INVALID_ARGUMENT (not HOST:PORT, or a
  // host that does not resolve), ALREADY_EXISTS (the port is taken), PERMISSION_DENIED,
  // UNAVAILABLE; each names the address and the remedy.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      std::string_view listen, std::shared_ptr<prometheus::Collectable> collectable,
      HttpLimits limits = {});
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // The listen address with the actual port number.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::unique_ptr<HttpListener> listener_;
};

}  // namespace withy::profiler_agent
