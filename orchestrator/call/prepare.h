// From a request to a decision: counts the prompt, and tells policy/call/call_plan.h what it asks
// for. Neighbours: generate.cc runs what comes out.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/encoder/prune.h"
#include "orchestrator/call/call_parts.h"
#include "policy/call/call_plan.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Everything about a call that is known before it runs.
struct Prepared {
  policy::Lane lane = policy::Lane::kTarget;
  WorkerInfo worker;
  policy::CostParameters cost;  // of the full model
  v1::TokenizeResponse tokens;  // of the whole prompt
  policy::PlannedCall plan;
  engine::PrunedPrompt pruned;  // `kept` is empty: the whole prompt
  policy::Turn turn;
  bool tlm_fits = false;  // a TLM decides for this model
  double tlm_ms = 0;      // that reading and shortening the prompt took; 0 = not done
  uint32_t queue_position = 0;

  // What the measured latency is held against.
  const policy::CallTargets& judged() const { return plan.demand.targets; }
};

// Blocks for as long as `deadline` allows. Errors: as llm_service.proto says of Plan.
absl::StatusOr<Prepared> Prepare(const CallParts& parts, const std::string& app_id,
                                 const v1::GenerateRequest& request, const IncomingCall& call,
                                 absl::Time deadline);

}  // namespace withy::orchestrator
