// The Profiler service on the wire: questions to the Agent, answers as messages.
#pragma once

#include <memory>
#include <string>

#include "profiler_agent/agent.h"

namespace grpc {
class Service;
}

namespace withy::profiler_agent {

// `agent` is borrowed and outlives the service. `metrics_address` is what GetProfilerInfo tells; ""
// when off.
std::unique_ptr<grpc::Service> MakeProfilerService(const Agent& agent, std::string metrics_address);

}  // namespace withy::profiler_agent
