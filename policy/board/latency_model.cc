#include "policy/board/latency_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace withy::policy {
namespace {

double PrefillMs(const CostParameters& cost, const LiveCorrection& live, double tokens,
                 double resident) {
  return tokens > 0 ? live.PrefillMs(PrefillWork(cost, tokens, resident)) : 0;
}

// One decode step of the others alone.
double StepMs(const CostParameters& cost, const LiveCorrection& live, const OtherRows& others) {
  if (others.rows <= 0) return 0;
  const double row_depth = others.depth / others.rows;
  return live.StepMs(StepWork(cost, cost, row_depth, {others.rows - 1, others.depth - row_depth}));
}

double RowMs(const CostParameters& cost, const LiveCorrection& live) {
  return cost.decode_us_per_extra_row * live.slowdown * live.step.ratio() / 1e3;
}

// `rows` of the calls that run and wait, as deep as those are on the average in the middle of what
// is left of their answers.
OtherRows RowsOfOthers(const LiveCorrection& live, const Load& load, double rows) {
  double depth = 0;
  for (const auto* calls : {&load.running, &load.ahead}) {
    for (const OtherCall& call : *calls) {
      depth += call.resident_tokens + call.prefill_tokens +
               std::min<double>(call.remaining_tokens, live.mean_completion_tokens) / 2;
    }
  }
  const size_t calls = load.running.size() + load.ahead.size();
  return {rows, calls > 0 ? depth / static_cast<double>(calls) * rows : 0};
}

double EndToEnd(double ttft_ms, double tpot_ms, uint32_t max_tokens) {
  return ttft_ms + (max_tokens > 1 ? (max_tokens - 1) * tpot_ms : 0.0);
}

// Milliseconds until a slot is free for this call: those ahead take the slots as they come free.
double WaitMs(const CostParameters& cost, const LiveCorrection& live, const Load& load) {
  const size_t slots = std::max(load.slots, 1u);
  const double step_ms = StepMs(cost, live, RowsOfOthers(live, load, static_cast<double>(slots)));
  const auto service_ms = [&](const OtherCall& call) {
    const double tokens = std::min<double>(call.remaining_tokens, live.mean_completion_tokens);
    return PrefillMs(cost, live, call.prefill_tokens, call.resident_tokens) + tokens * step_ms;
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

// Milliseconds until no running call would miss its SLO because of this one.
double LongestHoldMs(const Newcomer& newcomer, const Load& load, double running_prefill_ms,
                     const std::vector<double>& prefills_ms) {
  double hold_ms = 0;
  for (size_t i = 0; i < load.running.size(); ++i) {
    hold_ms = std::max(hold_ms, HoldMs(newcomer, load.running[i].slack,
                                       running_prefill_ms - prefills_ms[i], load.piece_ms));
  }
  return hold_ms;
}

}  // namespace

Work StepWork(const CostParameters& cost, const CostParameters& own, double depth,
              const OtherRows& others) {
  return {
      (own.decode_us_per_token + others.rows * cost.decode_us_per_extra_row) / 1e3,
      (depth * own.decode_us_per_context_token + others.depth * cost.decode_us_per_context_token) /
          1e3};
}

Prediction Predict(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                   const Load& load) {
  Prediction out;
  const LevelBias bias = live.Bias(call.level_percent);
  const CostParameters& own = call.level.has_value() ? *call.level : cost;
  double prefill_before_ms = 0;
  double running_prefill_ms = 0;
  std::vector<double> prefills_ms;
  for (const OtherCall& other : load.running) {
    prefills_ms.push_back(PrefillMs(cost, live, other.prefill_tokens, other.resident_tokens));
    running_prefill_ms += prefills_ms.back();
    if (other.goes_before) prefill_before_ms += prefills_ms.back();
  }
  const double own_prefill_ms =
      PrefillMs(own, live, call.prefill_tokens, call.resident_tokens) * bias.prefill;
  const Newcomer newcomer{own_prefill_ms, RowMs(own, live)};
  out.wait_ms = std::max(WaitMs(cost, live, load),
                         LongestHoldMs(newcomer, load, running_prefill_ms, prefills_ms));
  // Once a wait has passed, part of what runs now has gone; what is left of it shares the board as
  // the full slots do.
  if (out.wait_ms > 0) prefill_before_ms = 0;
  const OtherRows decoding = RowsOfOthers(
      live, load,
      std::min<double>(load.running.size() + load.ahead.size(), std::max(load.slots, 1u) - 1.0));
  const double prefill_ms = prefill_before_ms + own_prefill_ms;
  const double pieces = std::floor(prefill_ms / std::max(load.piece_ms, 1.0));
  out.ttft_ms = live.overhead_ms + call.tlm_ms + out.wait_ms + prefill_ms +
                pieces * StepMs(cost, live, decoding);
  const double answer = std::min<double>(
      call.max_tokens, call.answer_tokens > 0 ? call.answer_tokens : live.mean_completion_tokens);
  out.answer_tokens = std::max(answer, 2.0);
  // A step is as deep as the middle of the answer.
  const double depth = call.resident_tokens + call.prefill_tokens + out.answer_tokens / 2;
  const double token_ms =
      live.StepMs(StepWork(cost, own, depth, decoding)) * bias.step / call.speedup;
  out.growth_ms = own.decode_us_per_context_token / 1e3 * live.slowdown * live.step.depth_ratio() *
                  bias.step / 2 / call.speedup;
  out.ramp_ms = live.ramp.Steps() * token_ms;
  out.tpot_ms = token_ms + out.ramp_ms / (out.answer_tokens - 1);
  out.end_to_end_ms = EndToEnd(out.ttft_ms, out.TpotMs(call.max_tokens), call.max_tokens);
  const double step_ms =
      live.StepMs(StepWork(cost, own, depth, /*others=*/{})) * bias.step / call.speedup;
  out.newcomers = load.arrivals_per_ms *
                  (call.tlm_ms + own_prefill_ms + (answer + live.ramp.Steps()) * step_ms);
  return out;
}

Prediction PredictFullIdle(const CostParameters& cost, const LiveCorrection& live,
                           const CallShape& call) {
  CallShape full = call;
  full.level.reset();
  full.tlm_ms = 0;
  full.speedup = 1;
  LiveCorrection idle = live;
  static_cast<MeasuredSpeed&>(idle) = live.idle;
  idle.biases.clear();
  idle.slowdown = 1;  // what slows the board now is no part of its idle speed
  return Predict(cost, idle, full, Load{});
}

double ForeignPrefillMs(const CostParameters& cost, const LiveCorrection& live, double tokens,
                        double context_tokens) {
  return (tokens * cost.prefill_us_per_token * live.prefill.ratio() +
          context_tokens * cost.prefill_us_per_context_token * live.prefill.depth_ratio()) *
         live.slowdown / 1e3;
}

CallDemand DemandOf(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                    const Prediction& predicted, const std::optional<CostParameters>& lowest) {
  const CostParameters& own = call.level.has_value() ? *call.level : cost;
  CallDemand demand;
  if (lowest.has_value()) {
    const double tokens = std::max(1u, call.prefill_tokens);
    const double depth = call.resident_tokens + call.prefill_tokens;
    const auto share = [](double part, double whole) {
      return whole > 0 ? std::clamp(part / whole, 0.01, 1.0) : 1.0;
    };
    demand.least_share = std::max(
        share(StepWork(cost, *lowest, depth, {}).ms(), StepWork(cost, own, depth, {}).ms()),
        share(PrefillUs(*lowest, tokens, call.resident_tokens),
              PrefillUs(own, tokens, call.resident_tokens)));
  }
  demand.prefill_ms = PrefillMs(own, live, call.prefill_tokens, call.resident_tokens) *
                      live.Bias(call.level_percent).prefill;
  demand.token_ms = predicted.tpot_ms;
  demand.row_ms = RowMs(own, live);
  return demand;
}

double RetryAfterMs(const CostParameters& cost, const LiveCorrection& live, uint32_t running) {
  Load load;
  load.slots = std::max(running, 1u);
  const OtherCall open = {.remaining_tokens = std::numeric_limits<uint32_t>::max()};
  load.running.assign(load.slots, open);
  const Prediction next = Predict(cost, live, CallShape{}, load);
  return std::clamp(next.wait_ms, kLeastRetryMs, kMostRetryMs);
}

double TlmMs(const LiveCorrection& live, size_t bytes) {
  return static_cast<double>(bytes) * live.tlm_us_per_byte / 1e3;
}

uint32_t EstimatePrunedTokens(const LiveCorrection& live, uint32_t prompt_tokens, size_t text_bytes,
                              size_t kept_bytes) {
  if (kept_bytes >= text_bytes) return prompt_tokens;
  const double share = static_cast<double>(kept_bytes) / static_cast<double>(text_bytes);
  const double tokens = std::ceil(prompt_tokens * share * live.pruned_tokens_ratio);
  return static_cast<uint32_t>(std::clamp(tokens, 1.0, std::max(1.0, prompt_tokens * 1.0)));
}

}  // namespace withy::policy
