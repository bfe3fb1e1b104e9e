#include "profiler_agent/exporter.h"

#include <prometheus/text_serializer.h>

#include <utility>

#include "base/listen_address.h"
#include "base/status.h"
#include "base/tcp_listener.h"

namespace withy::profiler_agent {
namespace {

constexpr char kRemedy[] =
    "set profiler.metrics_listen to another HOST:PORT, or to \"off\" to serve no metrics";

}  // namespace

const std::vector<std::string>& KnownProcesses() {
  static const auto& names = *new std::vector<std::string>{
      "context_store", "draft_worker", "model_worker", "orchestrator", "profiler_agent"};
  return names;
}

std::vector<prometheus::MetricFamily> Exporter::Collect() const {
  const telemetry::ScopedSpan span(recorder_, scrape_);
  return MakeFamilies({.phases = agent_.Phases(),
                       .sizes = agent_.Sizes(),
                       .sources = agent_.Sources(),
                       .known_processes = KnownProcesses(),
                       .folded_spans = agent_.names_folded() + agent_.phase_overflows(),
                       .slo_objective = slo_objective_});
}

std::vector<prometheus::MetricFamily> Lean(std::vector<prometheus::MetricFamily> families) {
  std::erase_if(families, [](const prometheus::MetricFamily& family) {
    return family.name == "withy_phase_duration_seconds" ||
           family.name == "withy_kernel_duration_seconds";
  });
  return families;
}

std::string MetricsText(const prometheus::Collectable& collectable, bool lean) {
  std::vector<prometheus::MetricFamily> families = collectable.Collect();
  if (lean) families = Lean(std::move(families));
  return prometheus::TextSerializer().Serialize(families);
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    std::string_view listen, std::shared_ptr<prometheus::Collectable> collectable,
    std::vector<Page> further, const http::ServerOptions& options) {
  const std::string address(listen);
  WITHY_ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(address, "profiler.metrics_listen", kRemedy));
  auto server = std::unique_ptr<MetricsServer>(new MetricsServer);
  server->address_ = BoundAddress(socket, address);
  constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
  further.push_back({"/metrics/lean", kTextFormat,
                     [collectable] { return MetricsText(*collectable, /*lean=*/true); }});
  further.push_back({"/metrics", kTextFormat, [collectable = std::move(collectable)] {
                       return MetricsText(*collectable, /*lean=*/false);
                     }});
  WITHY_ASSIGN_OR_RETURN(server->pages_, ServePages(std::move(socket), std::move(further),
                                                    IsLoopback(listen), options));
  return server;
}

}  // namespace withy::profiler_agent
