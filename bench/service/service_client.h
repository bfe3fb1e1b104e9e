// What every benchmark of the whole service does before it measures: registers an app, and waits
// until the service answers. Neighbours: processes.h starts the processes.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/service/processes.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {

// The token of `app`, which is new. Waits for the orchestrator. Errors: of BindApp.
absl::StatusOr<std::string> BindNewApp(v1::LlmService::Stub& stub, const std::string& app);

// Until `ask` is answered; the model may have to be packed first. Errors: of `ask`, with what
// model_worker logged last.
absl::Status AwaitAnswer(const Processes& processes, const std::function<absl::Status()>& ask);

}  // namespace withy::bench
