// withy-context-store as an object: starts store, pool, side socket and gRPC server in the order of
// their dependencies. Used by main.cc and by tests.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/config.h"
#include "base/unique_fd.h"
#include "policy/kv/kv_strategy.h"
#include "rpc/daemon.h"

namespace withy::context_store {

// `config` has its defaults filled in; its state_dir exists. `kept_arena` may be invalid.
// `strategy`: how KV is treated; another than the default is a benchmark's. Errors:
// those of Store::Open, SideSocket::Start and rpc::Server::Start.
absl::StatusOr<std::unique_ptr<rpc::Process>> StartContextStore(
    const proto::Config& config, UniqueFd kept_arena, const policy::KvStrategy& strategy = {});

}  // namespace withy::context_store
