// One call of an app to a running service, and what the app sees of it. Neighbours: own_service.h
// starts a service.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {

// What an app received.
struct ServedAnswer {
  v1::Decision decision;
  v1::GenerateFinished finished;
  std::vector<int32_t> tokens;
  double ttft_ms = 0;    // from the request; 0: no token came
  double decode_ms = 0;  // first token to last
  double tpot_ms = 0;    // of those behind the ones that came first; 0: there are none
};

// Any thread. `token`: the app's. Errors: as LlmService.Generate.
absl::StatusOr<ServedAnswer> AskService(v1::LlmService::Stub& stub, const std::string& token,
                                        const v1::GenerateRequest& request);

// A greedy request of one message.
v1::GenerateRequest GreedyRequest(const std::string& text, uint32_t max_tokens);

}  // namespace withy::bench
