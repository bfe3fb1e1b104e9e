// withy-model-worker as an object: model, scheduler, connection to context_store, and server, built
// from the configuration. main.cc starts it, and benchmarks and tests with hooks.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/config.h"
#include "rpc/daemon.h"

namespace withy::model_worker {

// How a worker of tests and benchmarks differs from the one that ships.
struct WorkerHooks {
  // All that the allowed sources draft is verified, whatever it costs.
  bool speculate_always = false;
};

// Opens and measures the model, then serves. Health is NOT_SERVING until context_store is attached;
// it may come later. Errors: those of engine::OpenBundle (the message names the option to change),
// rpc::Server::Start, Recorder::Open.
absl::StatusOr<std::unique_ptr<rpc::Process>> StartModelWorker(const proto::Config& config,
                                                               const WorkerHooks& hooks = {});

}  // namespace withy::model_worker
