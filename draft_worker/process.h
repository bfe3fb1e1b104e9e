// withy-draft-worker as an object: the draft model, its answerer and its server. Used by main.cc
// and by tests.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/config.h"
#include "rpc/daemon.h"

namespace withy::draft_worker {

// Opens and measures the draft model, then serves. Errors: those of engine::OpenServedModel,
// rpc::Server::Start, Recorder::Open.
absl::StatusOr<std::unique_ptr<rpc::Process>> StartDraftWorker(const proto::Config& config);

}  // namespace withy::draft_worker
