// withy-profiler-agent: drains the span rings of all processes, exports Prometheus metrics and
// serves Profiler.
#include <utility>

#include "base/config.h"
#include "profiler_agent/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(argc, argv, "profiler_agent",
                               [](const withy::proto::Config& config)
                                   -> absl::StatusOr<std::unique_ptr<withy::rpc::Process>> {
                                 auto process = withy::profiler_agent::StartProfiler(config);
                                 if (!process.ok()) return process.status();
                                 return std::unique_ptr<withy::rpc::Process>(*std::move(process));
                               });
}
