// LlmService on the wire: hands every call to the gateway on a thread that may block.
// Neighbours: gateway.h does the work, server.h starts it. Text that is not valid UTF-8 is refused
// as INVALID_ARGUMENT here: protobuf's own parser would make it INTERNAL.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "base/clock.h"
#include "base/executor.h"
#include "orchestrator/gateway.h"
#include "rpc/open_streams.h"

namespace withy::orchestrator {

struct ServiceThreads {
  Executor& calls;   // runs Generate: as many threads as calls may be admitted
  Executor& shorts;  // runs everything else
};

// Who may do what.
struct ServiceAccess {
  bool bind_app_over_tcp = false;
  // Callers in TLS have certificates, which name their apps.
  bool certificates_name_apps = false;
};

// What is borrowed must outlive the service, and the server must be shut down before it is
// destroyed. `answers` counts the answers that have not fully been sent.
std::unique_ptr<grpc::Service> MakeLlmService(Gateway& gateway, const ServiceThreads& threads,
                                              const Clock& clock, rpc::OpenStreams& answers,
                                              const ServiceAccess& access);

}  // namespace withy::orchestrator
