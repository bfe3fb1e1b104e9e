#include "policy/call/finished_call.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

Observation ObservationOf(const PlannedCall& plan, const FinishedCall& call,
                          const DecodeSurroundings& around, const CostParameters& cost,
                          const LiveCorrection& live) {
  Observation seen;
  seen.app = call.app;
  seen.level = plan.shape.level;
  seen.level_percent = plan.shape.level_percent;
  seen.resident_tokens = call.reused_tokens;
  // The pace of several levels says nothing of one.
  if (call.first_as_decided && call.prefill_ms > 0) seen.prefilled_tokens = call.prefilled_tokens;
  seen.prefill_ms = call.prefill_ms;
  seen.overhead_ms = call.overhead_ms;
  seen.decoded_tokens = call.tokens - 1;
  const double speedup =
      call.speedup > 0 ? std::clamp(call.speedup, 1 / kMostSpeedup, kMostSpeedup) : 1;
  if (call.all_as_decided) seen.decode_ms = call.decode_ms * speedup;
  seen.speedup = call.speedup;
  seen.mean_decode_rows = around.mean_rows;
  seen.other_depth_tokens = around.other_depth_tokens;
  seen.foreign_prefill_ms =
      ForeignPrefillMs(cost, live, around.foreign_prefill_tokens, around.foreign_prefill_context);
  seen.ttft_share = call.measured.ttft_ms / plan.predicted.ttft_ms;
  if (seen.decode_ms > 0) {
    seen.tpot_share = call.measured.tpot_ms / plan.predicted.TpotMs(call.tokens);
  }
  seen.complete = call.complete;
  seen.full_alone =
      around.alone && call.first_as_decided && plan.decision.model_level_percent == 100;
  return seen;
}

}  // namespace withy::policy
