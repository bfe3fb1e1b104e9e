// withy-orchestrator: the process that apps talk to.
#include "base/config.h"
#include "base/thread_role.h"
#include "orchestrator/orchestrator.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(argc, argv, "orchestrator", [](const withy::proto::Config& config) {
    withy::SetThreadRole(withy::ThreadRole::kCarries);
    return withy::orchestrator::StartOrchestrator(config);
  });
}
