// withy-bench-always-worker: model_worker that verifies all that is drafted, whatever it costs, so
// that drafts do not depend on how fast the machine is. For benchmarks and end-to-end tests.
#include "model_worker/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(argc, argv, "model_worker", [](const withy::proto::Config& config) {
    return withy::model_worker::StartModelWorker(config, {.speculate_always = true});
  });
}
