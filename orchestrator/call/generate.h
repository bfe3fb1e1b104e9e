// One Generate call from arrival to its last message. Neighbours: prepare.h decides, calls.h
// admits, backends.h runs.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "orchestrator/call/call_parts.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Runs one call that has arrived to its end. `control` is shared with whoever cancels. Blocks; not
// for gRPC's own threads. Errors: as llm_service.proto says of Generate.
absl::Status Generate(const CallParts& parts, const IncomingCall& call,
                      const v1::GenerateRequest& request,
                      const std::shared_ptr<CallControl>& control, const AnswerSink& sink);

}  // namespace withy::orchestrator
