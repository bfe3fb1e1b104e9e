// profiler_agent as an object: its ring, agent, metrics server and gRPC server, built from the
// configuration.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "rpc/daemon.h"

namespace withy::profiler_agent {

// A running profiler agent.
class ProfilerProcess : public rpc::Process {
 public:
  // "" if metrics are off.
  virtual const std::string& metrics_address() const = 0;
};

// `config` has its defaults filled in. Errors: those of Agent::Start, MetricsServer::Start and
// rpc::Server::Start.
absl::StatusOr<std::unique_ptr<ProfilerProcess>> StartProfiler(const v1::Config& config);

}  // namespace withy::profiler_agent
