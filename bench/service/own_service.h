// A service of five processes in a directory of its own, and an app's calls to it: for benchmarks
// of the whole service. Neighbours: processes.h starts the processes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/service/ask.h"
#include "bench/service/processes.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {

struct OwnServiceOptions {
  // Fields of the configuration's sections, as textproto. Where nothing else is said, processes
  // serve the pocket pair, without the TLM, audits and metrics, and upgrade no idle context.
  std::string orchestrator = {};
  std::string model = {};
  std::string draft = {};
  std::string store = {};
  std::string packed_dir = {};  // where packed files are kept between runs; empty: nowhere
  std::map<std::string, std::string> programs = {};  // by process, others than its own
  std::vector<std::string> environment = {};         // of the processes
};

// Not thread-safe but for Ask.
class OwnService {
 public:
  // Starts the processes, binds an app and waits until it is answered; a model may have to be
  // packed first. Errors: of starting them; of a call, with what model_worker logged last.
  static absl::StatusOr<std::unique_ptr<OwnService>> Start(const OwnServiceOptions& options);

  // Errors: as LlmService.Generate.
  absl::StatusOr<ServedAnswer> Ask(const v1::GenerateRequest& request);
  // Another app from now on: nothing that was said before is looked up. Errors: of BindApp.
  absl::Status ChangeApp();
  // Kills and starts all processes, and waits until all serve. Errors: DEADLINE_EXCEEDED.
  absl::Status Restart();

  const Processes& processes() const { return *processes_; }
  v1::LlmService::Stub& stub() { return *stub_; }
  const std::string& token() const { return token_; }
  // A call of the app's.
  void Prepare(grpc::ClientContext* context) const;

 private:
  OwnService() = default;
  absl::Status StartAll();
  absl::Status AwaitServing();

  TemporaryDirectory directory_;
  std::unique_ptr<Processes> processes_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
  int apps_ = 0;
};

}  // namespace withy::bench
