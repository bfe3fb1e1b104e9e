// withy-context-store: keeps every context, its text durably and its KV in the shared arena.
#include "context_store/arena.h"
#include "context_store/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  using withy::context_store::StartContextStore;
  return withy::rpc::RunDaemon(argc, argv, "context_store", [](const withy::proto::Config& config) {
    return StartContextStore(config, withy::context_store::TakeArenaFromSystemd());
  });
}
