// The orchestrator as an object: configuration in, a serving process out. Neighbours: main.cc and
// tests start it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "rpc/daemon.h"
#include "withy/v1/config.pb.h"

namespace withy::orchestrator {

// Serves LlmService on config.orchestrator.listen. The other processes need not be there yet.
// `config` must be filled (base/config.h). Errors: as rpc::Server::Start and
// telemetry::Recorder::Open.
absl::StatusOr<std::unique_ptr<rpc::Process>> StartOrchestrator(const v1::Config& config);

}  // namespace withy::orchestrator
