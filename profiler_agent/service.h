// The gRPC service Profiler: queries the Agent.
#pragma once

#include <memory>
#include <string>

#include "profiler_agent/agent.h"

namespace grpc {
class Service;
}

namespace withy::profiler_agent {

// `agent` is borrowed and must outlive the service. `metrics_address` is reported by
// GetProfilerInfo;
// "" if metrics are off.
std::unique_ptr<grpc::Service> MakeProfilerService(const Agent& agent, std::string metrics_address);

}  // namespace withy::profiler_agent
