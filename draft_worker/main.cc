// withy-draft-worker: owns the draft model's weights and answers with them alone.
#include "draft_worker/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(argc, argv, "draft_worker", withy::draft_worker::StartDraftWorker);
}
