// The gRPC service Profiler: queries the Agent, streams its spans, and captures timelines.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "profiler_agent/agent.h"
#include "rpc/open_streams.h"

namespace grpc {
class Service;
}

namespace withy::profiler_agent {

class ProfilerServer {
 public:
  virtual ~ProfilerServer() = default;
  virtual grpc::Service* service() = 0;
  // Ends streams of spans, and a running capture, which sends what it has. Thread-safe.
  virtual void Stop() = 0;
};

// `metrics`: the text of GetMetrics; any thread. `agent` and `answers`, which counts the streams
// that have not fully been sent, are borrowed and must outlive the service. `metrics_address` is
// reported by GetProfilerInfo; "" if metrics are off.
std::unique_ptr<ProfilerServer> MakeProfilerServer(Agent& agent, std::string metrics_address,
                                                   std::function<std::string(bool lean)> metrics,
                                                   rpc::OpenStreams& answers);

}  // namespace withy::profiler_agent
