// Boards that the tests of predictions share.
#pragma once

#include "policy/board/cost_parameters.h"
#include "policy/board/live_correction.h"

namespace withy::policy {

// 1 ms a prompt token, 20 ms a token, 2 ms a further row.
inline const CostParameters kCost{1000, 20'000, 2'000};
inline constexpr MeasuredSpeed kExact{.prefill = {}, .step = {}, .overhead_ms = 0};
inline const LiveCorrection kNeutral{kExact, kExact, 64};

// A calibrated board. Short prompts cost more a token than longer ones; attention makes the longest
// dear again.
inline const CostParameters kMeasured{
    .prefill_us_per_token = 600,
    .decode_us_per_token = 20'000,
    .decode_us_per_extra_row = 2'000,
    .decode_us_per_context_token = 10,
    .prefill = {{16, 32'000}, {64, 64'000}, {256, 160'000}, {1024, 640'000}}};

}  // namespace withy::policy
