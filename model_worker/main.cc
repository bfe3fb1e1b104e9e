// withy-model-worker: owns the target's weights; prefills, decodes and streams.
#include "model_worker/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(argc, argv, "model_worker", [](const withy::proto::Config& config) {
    return withy::model_worker::StartModelWorker(config);
  });
}
