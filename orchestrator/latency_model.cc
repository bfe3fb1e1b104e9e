#include "orchestrator/latency_model.h"

#include <algorithm>
#include <cmath>

namespace withy::orchestrator {
namespace {

constexpr double kWeight = 0.2;  // of one observation
constexpr double kMaxRatio = 8;  // of one observation, and its inverse
constexpr double kMinDecodeShare =
    0.25;  // of decode_ms that must be the call's own to learn from it

double LevelScale(uint32_t level_percent) { return std::clamp(level_percent, 1u, 100u) / 100.0; }

double PrefillMs(const CostParameters& cost, const LiveCorrection& live, double tokens) {
  return tokens * cost.prefill_us_per_token * live.prefill_ratio / 1e3;
}

// One decode step with `rows` rows.
double StepMs(const CostParameters& cost, const LiveCorrection& live, double rows) {
  if (rows <= 0) return 0;
  return (cost.decode_us_per_token + (rows - 1) * cost.decode_us_per_extra_row) *
         live.decode_ratio / 1e3;
}

double EndToEnd(double ttft_ms, double tpot_ms, uint32_t max_tokens) {
  return ttft_ms + (max_tokens > 1 ? (max_tokens - 1) * tpot_ms : 0.0);
}

// Milliseconds until a slot is free for this call: those ahead take the slots as they come free.
double WaitMs(const CostParameters& cost, const LiveCorrection& live, const Load& load) {
  const size_t slots = std::max(load.slots, 1u);
  const double step_ms = StepMs(cost, live, static_cast<double>(slots));
  const auto service_ms = [&](const OtherCall& call) {
    const double tokens = std::min<double>(call.remaining_tokens, live.mean_completion_tokens);
    return PrefillMs(cost, live, call.prefill_tokens) + tokens * step_ms;
  };
  std::vector<double> free_at(slots, 0.0);
  for (size_t i = 0; i < load.running.size(); ++i) {
    free_at[i % slots] = std::max(free_at[i % slots], service_ms(load.running[i]));
  }
  for (const OtherCall& call : load.ahead) {
    auto earliest = std::min_element(free_at.begin(), free_at.end());
    *earliest += service_ms(call);
  }
  return *std::min_element(free_at.begin(), free_at.end());
}

double Blend(double old_value, double measured, double predicted) {
  if (predicted <= 0 || measured <= 0 || !std::isfinite(measured)) return old_value;
  const double ratio = std::clamp(old_value * measured / predicted, 1 / kMaxRatio, kMaxRatio);
  return old_value + kWeight * (ratio - old_value);
}

}  // namespace

Prediction Predict(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                   const Load& load) {
  Prediction out;
  const double scale = LevelScale(call.level_percent);
  out.wait_ms = WaitMs(cost, live, load);
  // Once a wait has passed, part of what runs now has gone; what is left of it shares the board as
  // the full slots do.
  double prefill_before_ms = 0;
  double decoding = 0;
  for (const OtherCall& other : load.running) {
    if (out.wait_ms == 0) prefill_before_ms += PrefillMs(cost, live, other.prefill_tokens);
    decoding += 1;
  }
  decoding = std::min<double>(decoding + load.ahead.size(), std::max(load.slots, 1u) - 1.0);
  const double prefill_ms = prefill_before_ms + scale * PrefillMs(cost, live, call.prefill_tokens);
  const double pieces = std::floor(prefill_ms / std::max(load.piece_ms, 1.0));
  out.ttft_ms = live.overhead_ms + out.wait_ms + prefill_ms + pieces * StepMs(cost, live, decoding);
  out.tpot_ms = StepMs(cost, live, decoding + 1) - (1 - scale) * StepMs(cost, live, 1);
  out.end_to_end_ms = EndToEnd(out.ttft_ms, out.tpot_ms, call.max_tokens);
  return out;
}

Prediction PredictFullIdle(const CostParameters& cost, const LiveCorrection& live,
                           const CallShape& call) {
  CallShape full = call;
  full.level_percent = 100;
  return Predict(cost, live, full, Load{});
}

LiveCorrection Learn(const CostParameters& cost, const LiveCorrection& live,
                     const Observation& seen) {
  LiveCorrection next = live;
  const double scale = LevelScale(seen.level_percent);
  if (seen.prefilled_tokens > 0) {
    const double predicted = scale * PrefillMs(cost, live, seen.prefilled_tokens);
    next.prefill_ratio = Blend(live.prefill_ratio, seen.prefill_ms, predicted);
  }
  if (seen.overhead_ms >= 0 && std::isfinite(seen.overhead_ms)) {
    // Waiting that the report did not name must not pass for overhead.
    const double bounded = std::min(seen.overhead_ms, 4 * live.overhead_ms + 5);
    next.overhead_ms = live.overhead_ms + kWeight * (bounded - live.overhead_ms);
  }
  const double own_ms = seen.decode_ms - seen.foreign_prefill_ms;
  if (seen.decoded_tokens > 0 && own_ms >= kMinDecodeShare * seen.decode_ms) {
    const double step_ms = StepMs(cost, live, std::max(seen.mean_decode_rows, 1.0)) -
                           (1 - scale) * StepMs(cost, live, 1);
    next.decode_ratio = Blend(live.decode_ratio, own_ms, seen.decoded_tokens * step_ms);
  }
  if (seen.complete) {
    const double tokens = seen.decoded_tokens + 1.0;
    next.mean_completion_tokens =
        live.mean_completion_tokens + kWeight * (tokens - live.mean_completion_tokens);
  }
  return next;
}

}  // namespace withy::orchestrator
