// withy-model-worker as an object: model, scheduler, connection to context_store, and server, built
// from the configuration. main.cc and tests start it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/config.h"
#include "rpc/daemon.h"

namespace withy::model_worker {

// Opens and measures the model, then serves. Health is NOT_SERVING until context_store is attached;
// it may come later. Errors: those of engine::OpenBundle (the message names the option to change),
// rpc::Server::Start, Recorder::Open.
absl::StatusOr<std::unique_ptr<rpc::Process>> StartModelWorker(const proto::Config& config);

}  // namespace withy::model_worker
