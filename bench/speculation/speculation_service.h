// A service of five processes with given models, and calls to it with and without speculation.
// Neighbours: speculation.cc measures with it, processes.h starts processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/service/processes.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {

struct SpeculationServiceOptions {
  std::string model;            // GGUF; empty: the pocket model
  std::string draft;            // likewise
  std::string packed_dir = "";  // where packed files are kept between runs; empty: nowhere
  int threads = 2;
  int tree_rows = 0;                 // 0: the default
  bool always = false;               // verifies all that is drafted
  uint64_t weight_budget_bytes = 0;  // of the target; 0: all weights stay in memory
  bool windows = true;               // drafts while a pass waits for weights
};

// What came of one call.
struct SpeculationAnswer {
  std::vector<int32_t> tokens;
  std::string text;
  double decode_ms = 0;  // first token to last
  v1::SpeculationReport report;
};

// Not thread-safe but for Ask.
class SpeculationService {
 public:
  // Starts the processes and waits until they answer. Errors: of starting them; DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<SpeculationService>> Start(
      const SpeculationServiceOptions& options);

  // Errors: as LlmService.Generate.
  absl::StatusOr<SpeculationAnswer> Ask(const v1::GenerateRequest& request);
  // Another app from now on: nothing that was said before is looked up.
  absl::Status ChangeApp();

 private:
  SpeculationService() = default;

  TemporaryDirectory directory_;
  std::unique_ptr<Processes> processes_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
  int apps_ = 0;
};

}  // namespace withy::bench
