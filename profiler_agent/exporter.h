// What Prometheus scrapes: the agent's histograms and the counters and gauges of all processes, as
// metric families; and the HTTP listener that serves them. Names and units follow Prometheus'
// rules.
//
//   withy_phase_duration_seconds{process,phase}    histogram; kernels:
//   withy_kernel_duration_seconds{process,kernel} withy_ttft_seconds, withy_tpot_seconds,
//   withy_end_to_end_seconds {process}    histograms withy_up, withy_process_start_time_seconds,
//   withy_span_rings {process}    gauges withy_spans_total, withy_spans_dropped_total,
//   withy_spans_malformed_total, withy_telemetry_overflows_total {process} and every counter and
//   gauge that a process registered, with the label process
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

// The families of one moment. `known_processes` have a withy_up even when they have no ring file. A
// registered metric that takes a built-in name, or a name that another process uses as another
// type, is left out. Pure.
std::vector<prometheus::MetricFamily> MakeFamilies(
    const std::vector<PhaseRow>& phases, const std::vector<telemetry::SourceInfo>& sources,
    const std::vector<std::string>& known_processes);

// Adapts an agent; records each scrape as a span. Both are borrowed and outlive this.
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

// GET /metrics over HTTP, with a thread of its own, as long as it lives; http_listener.h says what
// it bears.
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

  // With the real port number.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::unique_ptr<HttpListener> listener_;
};

}  // namespace withy::profiler_agent
