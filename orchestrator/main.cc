// withy-orchestrator: the process that apps talk to.
#include "base/config.h"
#include "base/keep_in_memory.h"
#include "base/thread_role.h"
#include "orchestrator/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(argc, argv, "orchestrator", [](const withy::proto::Config& config) {
    withy::KeepInMemory(0);
    withy::SetThreadRole(withy::ThreadRole::kCarries);
    return withy::orchestrator::StartOrchestrator(config);
  });
}
