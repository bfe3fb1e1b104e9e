// withy-context-store as an object: store, pool, side socket, gRPC server, in the order in which
// they need each other. Used by main.cc and by tests.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/config.h"
#include "base/unique_fd.h"
#include "rpc/daemon.h"

namespace withy::context_store {

// `config` has its defaults filled in; its state_dir is there. `kept_arena` may be empty. Errors:
// those of Store::Open, of SideSocket::Start and of rpc::Server::Start.
absl::StatusOr<std::unique_ptr<rpc::Process>> StartContextStore(const proto::Config& config,
                                                                UniqueFd kept_arena);

}  // namespace withy::context_store
