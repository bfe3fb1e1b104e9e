// What a finished call teaches the latency model. Pure. Neighbours: call_plan.h planned the call,
// admission.h tells what ran beside it, latency_learning.h learns.
#pragma once

#include <cstdint>
#include <string>

#include "policy/board/latency_learning.h"
#include "policy/call/admission.h"
#include "policy/call/call_plan.h"

namespace withy::policy {

// How a call really went.
struct FinishedCall {
  std::string app = {};
  Latency measured = {};
  double decode_ms = 0;  // first token to last
  uint32_t tokens = 0;   // of the answer; at least 1
  uint32_t reused_tokens = 0;
  uint32_t prefilled_tokens = 0;
  double prefill_ms = 0;         // its own prefill, waits excluded; 0 = not known
  double overhead_ms = 0;        // of TTFT, what is neither waiting nor reading nor prefill
  bool first_as_decided = true;  // its first token was made at the decided level
  bool all_as_decided = true;    // all of them were
  bool complete = false;         // ended by itself: its length counts
  double speedup = 0;            // of its decoding, by speculation; 0 = not known
};

// `cost`: of the full model; `live`: what is known so far.
Observation ObservationOf(const PlannedCall& plan, const FinishedCall& call,
                          const DecodeSurroundings& around, const CostParameters& cost,
                          const LiveCorrection& live);

}  // namespace withy::policy
