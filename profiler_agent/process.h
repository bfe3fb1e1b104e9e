// profiler_agent as an object: its ring, its agent, its metrics listener and its gRPC server, made
// from the configuration.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "rpc/daemon.h"

namespace withy::profiler_agent {

// A running profiler agent.
class ProfilerProcess : public rpc::Process {
 public:
  // "" when metrics are off.
  virtual const std::string& metrics_address() const = 0;
};

// `config` has its defaults filled. Errors: those of Agent::Start, MetricsServer::Start and
// rpc::Server::Start.
absl::StatusOr<std::unique_ptr<ProfilerProcess>> StartProfiler(const v1::Config& config);

}  // namespace withy::profiler_agent
