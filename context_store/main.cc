// withy-context-store: keeps the text of every context durably and its KV in the shared arena.
#include <fcntl.h>

#include <utility>

#include "context_store/arena/arena.h"
#include "context_store/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  // Kept until a start succeeds, because a start may be retried.
  withy::UniqueFd arena = withy::context_store::TakeArenaFromSystemd();
  return withy::rpc::RunDaemon(
      argc, argv, "context_store", [&arena](const withy::proto::Config& config) {
        withy::UniqueFd copy;
        if (arena.valid()) copy.Reset(fcntl(arena.get(), F_DUPFD_CLOEXEC, 0));
        auto process = withy::context_store::StartContextStore(config, std::move(copy));
        if (process.ok()) arena.Reset();
        return process;
      });
}
