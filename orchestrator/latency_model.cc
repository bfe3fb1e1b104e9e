#include "orchestrator/latency_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace withy::orchestrator {
namespace {

constexpr double kProbeWeight = 0.5;  // of one observation that is a probe
// The same, of the full model on the idle board, once many are known: what an SLO's ratios are of
// must not follow the last call's luck.
constexpr double kIdleWeight = 0.04;
constexpr double kMinSurpriseMs = 1;  // of the overhead
constexpr double kMinDecodeShare =
    0.25;  // of decode_ms that must be the call's own to learn from it

// Of one observation, for the bias of a level; and how large that may grow.
constexpr double kBiasWeight = 0.1;
constexpr double kMaxBias = 2;
// How fast the chances of being in time follow: an observation is half forgotten after 23 others.
constexpr double kDeviationWeight = 0.03;
// An app's first calls count for more: what holds for all apps counts as so many of its own.
constexpr double kAppPriorCalls = 20;
constexpr size_t kMaxApps = 32;        // those that have not called for longest are forgotten
constexpr double kBackToStart = 0.1;   // of the way, whenever the TLM is not asked for its slowness
constexpr double kAnswerWeight = 0.1;  // of one answer, for how long those of an app are

constexpr double kRampWeight = 0.04;  // of one answer, for the ramp: a mean over 25 of them
constexpr double kRampPrior = 0.01;   // of there being none, beside all answers' 1
constexpr double kMaxRamp = 8;        // steps
// Answers after which one counts as at most kMaxSurprise off the line through those before.
constexpr double kRampKnown = 10;

// Calibrated times for which a wrong prediction is half the constant's fault: a few times what
// constants are, so that the many short calls leave the ratio to the long ones.
constexpr double kShortPrefillMs = 10;
constexpr double kShortStepMs = 2;

double PrefillMs(const CostParameters& cost, const Pace& live, double tokens, double resident) {
  return tokens > 0 ? live.prefill.Ms(PrefillWork(cost, tokens, resident)) : 0;
}

// Calls beside one that is predicted or has been observed: rows of its steps, and the tokens of
// their contexts together. At which level they run is not known: they count as the full model's.
struct Others {
  double rows = 0;
  double depth = 0;
};

// One decode step of a call at its own level, `depth` tokens deep, beside others.
Work StepWork(const CostParameters& cost, const CostParameters& own, double depth,
              const Others& others) {
  return {
      (own.decode_us_per_token + others.rows * cost.decode_us_per_extra_row) / 1e3,
      (depth * own.decode_us_per_context_token + others.depth * cost.decode_us_per_context_token) /
          1e3};
}

// One decode step of the others alone.
double StepMs(const CostParameters& cost, const Pace& live, const Others& others) {
  if (others.rows <= 0) return 0;
  const double row_depth = others.depth / others.rows;
  return live.step.Ms(StepWork(cost, cost, row_depth, {others.rows - 1, others.depth - row_depth}));
}

double RowMs(const CostParameters& cost, const LiveCorrection& live) {
  return cost.decode_us_per_extra_row * live.step.ratio() / 1e3;
}

// `rows` of the calls that run and wait, as deep as those are on the average in the middle of what
// is left of their answers.
Others OthersOf(const LiveCorrection& live, const Load& load, double rows) {
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
  const double step_ms = StepMs(cost, live, OthersOf(live, load, static_cast<double>(slots)));
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

double Blend(double old_value, double measured, double predicted) {
  if (predicted <= 0 || measured <= 0 || !std::isfinite(measured)) return old_value;
  const double surprise = std::clamp(measured / predicted - 1, -kMaxSurprise, kMaxSurprise);
  return std::clamp(old_value * (1 + kFitWeight * surprise), 1 / kMaxRatio, kMaxRatio);
}

void LearnBias(double measured_ms, double predicted_ms, double weight, double* bias) {
  if (measured_ms <= 0 || predicted_ms <= 0 || !std::isfinite(measured_ms)) return;
  const double surprise = std::clamp(measured_ms / predicted_ms - 1, -kMaxSurprise, kMaxSurprise);
  *bias = std::clamp(*bias * (1 + weight * surprise), 1 / kMaxBias, kMaxBias);
}

// What a call's decode steps took of their own, together; 0: it does not tell.
double MeasuredDecodeMs(const Observation& seen) {
  const double own_ms = seen.decode_ms - seen.foreign_prefill_ms;
  const bool tells = seen.decoded_tokens > 0 && own_ms >= kMinDecodeShare * seen.decode_ms;
  return tells ? own_ms : 0;
}

// Each of them, the ramp aside.
double MeasuredStepMs(const Pace& pace, const Observation& seen) {
  return MeasuredDecodeMs(seen) / (std::max(1u, seen.decoded_tokens) + pace.ramp.Steps());
}

// In steps as calibrated, but as deep as they are found to be.
void LearnRamp(const Observation& seen, const Work& work, const SpeedFit& step, Ramp* ramp) {
  const double measured_ms = MeasuredDecodeMs(seen);
  const double step_ms = work.base_ms + work.depth_ms * step.depth_ratio() / step.ratio();
  if (measured_ms <= 0 || !std::isfinite(measured_ms) || step_ms <= 0) return;
  ramp->Observe(seen.decoded_tokens, measured_ms / step_ms);
}

Work ObservedPrefill(const CostParameters& own, const Observation& seen) {
  return PrefillWork(own, seen.prefilled_tokens, seen.resident_tokens);
}

Work ObservedStep(const CostParameters& cost, const CostParameters& own, const Observation& seen) {
  const double depth = seen.resident_tokens + seen.prefilled_tokens + seen.decoded_tokens / 2.0;
  return StepWork(cost, own, depth,
                  {std::max(seen.mean_decode_rows, 1.0) - 1, seen.other_depth_tokens});
}

Pace LearnPace(const CostParameters& cost, const Pace& pace, const Observation& seen,
               double weight) {
  const CostParameters& own = seen.level.has_value() ? *seen.level : cost;
  Pace next = pace;
  next.prefill.Learn(ObservedPrefill(own, seen), seen.prefill_ms, kShortPrefillMs, weight);
  if (seen.overhead_ms >= 0 && std::isfinite(seen.overhead_ms)) {
    // Waiting that the report did not name must not pass for overhead.
    next.overhead_ms += Correction(seen.overhead_ms, pace.overhead_ms, kMinSurpriseMs, weight,
                                   &next.overhead_surprises);
  }
  const Work step = ObservedStep(cost, own, seen);
  next.step.Learn(step, MeasuredStepMs(pace, seen), kShortStepMs, weight);
  LearnRamp(seen, step, next.step, &next.ramp);
  return next;
}

void LearnBiases(const CostParameters& cost, const Observation& seen, LiveCorrection* live) {
  const CostParameters& own = seen.level.has_value() ? *seen.level : cost;
  auto found = std::find_if(live->biases.begin(), live->biases.end(), [&](const LevelBias& bias) {
    return bias.percent == seen.level_percent;
  });
  if (found == live->biases.end()) {
    found = live->biases.insert(found, {.percent = seen.level_percent});
  }
  const double weight = seen.probe ? kProbeWeight : kBiasWeight;
  if (seen.prefilled_tokens > 0) {
    LearnBias(seen.prefill_ms, live->prefill.Ms(ObservedPrefill(own, seen)) * found->prefill,
              weight, &found->prefill);
  }
  LearnBias(MeasuredStepMs(*live, seen), live->step.Ms(ObservedStep(cost, own, seen)) * found->step,
            weight, &found->step);
}

void LearnReliability(const Observation& seen, double weight, Reliability* reliability) {
  const auto learn = [&](double share, Deviation* deviation) {
    if (share > 0 && std::isfinite(share)) deviation->Observe(std::log(share), weight);
  };
  learn(seen.ttft_share, &reliability->ttft);
  learn(seen.tpot_share, &reliability->tpot);
}

auto FindApp(auto& apps, std::string_view name) {
  return std::find_if(apps.begin(), apps.end(),
                      [&](const AppHistory& known) { return known.app == name; });
}

void LearnApp(const Observation& seen, LiveCorrection* live) {
  if (seen.app.empty() || seen.ttft_share <= 0) return;
  std::vector<AppHistory>& apps = live->apps;
  const auto found = FindApp(apps, seen.app);
  if (found != apps.end()) {
    std::rotate(found, found + 1, apps.end());
  } else {
    if (apps.size() == kMaxApps) apps.erase(apps.begin());
    apps.push_back({.app = seen.app, .reliability = live->reliability});
  }
  AppHistory& app = apps.back();
  app.calls += 1;
  if (seen.complete) {
    const double tokens = seen.decoded_tokens + 1.0;
    const double weight = app.answer_tokens > 0 ? kAnswerWeight : 1;
    app.answer_tokens += weight * (tokens - app.answer_tokens);
  }
  LearnReliability(seen, std::max(kDeviationWeight, 1 / (kAppPriorCalls + app.calls)),
                   &app.reliability);
}

}  // namespace

Deviation::Deviation(double mean, double standard_deviation) {
  const auto up_to = [&](double off) {
    return 0.5 * std::erfc((mean - off) / standard_deviation / std::numbers::sqrt2);
  };
  double below = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const bool last = i + 1 == shares_.size();
    const double share = last ? 1 : up_to(kLowest + static_cast<double>(i + 1) * kWidth);
    shares_[i] = share - below;
    below = share;
  }
}

// Spread over the neighbours, so that a chance does not jump from one limit to the next.
void Deviation::Observe(double off, double weight) {
  const double place = std::clamp((off - kLowest) / kWidth, 0.5, shares_.size() - 0.5) - 0.5;
  const auto at = static_cast<size_t>(place);
  const double next = place - static_cast<double>(at);
  for (double& share : shares_) share *= 1 - weight;
  shares_[at] += weight * (1 - next);
  if (next > 0) shares_[at + 1] += weight * next;
}

double Deviation::ShareUpTo(double off) const {
  const double place =
      std::clamp((off - kLowest) / kWidth, 0.0, static_cast<double>(shares_.size()));
  const auto whole = static_cast<size_t>(place);
  double share = 0;
  for (size_t i = 0; i < whole; ++i) share += shares_[i];
  if (whole < shares_.size()) share += (place - static_cast<double>(whole)) * shares_[whole];
  return share;
}

double ChanceWithin(const Deviation& deviation, double predicted_ms, double limit_ms) {
  if (std::isinf(limit_ms) || predicted_ms <= 0) return 1;
  return limit_ms > 0 ? deviation.ShareUpTo(std::log(limit_ms / predicted_ms)) : 0;
}

void Ramp::Observe(double steps, double took) {
  const auto [slope, constant] = Fit();
  if (answers_ >= kRampKnown && slope > 0) {
    const double expected = slope * steps + constant;
    took = std::clamp(took, (1 - kMaxSurprise) * expected, (1 + kMaxSurprise) * expected);
  }
  answers_ += 1;
  const double weight = std::max(kRampWeight, 1 / answers_);
  const auto move = [&](double value, double* mean) { *mean += weight * (value - *mean); };
  move(steps, &steps_);
  move(steps * steps, &steps_squared_);
  move(took, &took_);
  move(steps * took, &steps_took_);
}

// took = slope · steps + constant, the constant held near zero where lengths hardly differ.
std::pair<double, double> Ramp::Fit() const {
  const double of_constant = 1 + kRampPrior;
  const double determinant = steps_squared_ * of_constant - steps_ * steps_;
  if (determinant <= 0) return {0, 0};
  return {(steps_took_ * of_constant - took_ * steps_) / determinant,
          (steps_squared_ * took_ - steps_ * steps_took_) / determinant};
}

double Ramp::Steps() const {
  const auto [slope, constant] = Fit();
  return slope > 0 ? std::clamp(constant / slope, 0.0, kMaxRamp) : 0;
}

LevelBias LiveCorrection::Bias(uint32_t percent) const {
  const auto found = std::find_if(biases.begin(), biases.end(),
                                  [&](const LevelBias& bias) { return bias.percent == percent; });
  return found != biases.end() ? *found : LevelBias{};
}

const Reliability& LiveCorrection::ReliabilityOf(std::string_view app) const {
  const auto found = FindApp(apps, app);
  return found != apps.end() ? found->reliability : reliability;
}

double LiveCorrection::AnswerTokensOf(std::string_view app) const {
  const auto found = FindApp(apps, app);
  const bool known = found != apps.end() && found->answer_tokens > 0;
  return known ? found->answer_tokens : mean_completion_tokens;
}

double TpotOfLength(double tpot_ms, double ramp_ms, double growth_ms, double answer_tokens,
                    double tokens) {
  const double length = std::max(tokens, 2.0);
  return tpot_ms + ramp_ms * (1 / (length - 1) - 1 / (answer_tokens - 1)) +
         growth_ms * (length - answer_tokens);
}

double Prediction::TpotMs(double tokens) const {
  return TpotOfLength(tpot_ms, ramp_ms, growth_ms, answer_tokens, tokens);
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
  const Others decoding = OthersOf(
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
  const double token_ms = live.step.Ms(StepWork(cost, own, depth, decoding)) * bias.step;
  out.growth_ms = own.decode_us_per_context_token / 1e3 * live.step.depth_ratio() * bias.step / 2;
  out.ramp_ms = live.ramp.Steps() * token_ms;
  out.tpot_ms = token_ms + out.ramp_ms / (out.answer_tokens - 1);
  out.end_to_end_ms = EndToEnd(out.ttft_ms, out.TpotMs(call.max_tokens), call.max_tokens);
  const double step_ms = live.step.Ms(StepWork(cost, own, depth, /*others=*/{})) * bias.step;
  out.newcomers = load.arrivals_per_ms *
                  (call.tlm_ms + own_prefill_ms + (answer + live.ramp.Steps()) * step_ms);
  return out;
}

Prediction PredictFullIdle(const CostParameters& cost, const LiveCorrection& live,
                           const CallShape& call) {
  CallShape full = call;
  full.level.reset();
  full.tlm_ms = 0;
  LiveCorrection idle = live;
  static_cast<Pace&>(idle) = live.idle;
  idle.biases.clear();
  return Predict(cost, idle, full, Load{});
}

double ForeignPrefillMs(const CostParameters& cost, const LiveCorrection& live, double tokens,
                        double context_tokens) {
  return (tokens * cost.prefill_us_per_token * live.prefill.ratio() +
          context_tokens * cost.prefill_us_per_context_token * live.prefill.depth_ratio()) /
         1e3;
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

LiveCorrection ForNewCost(const LiveCorrection& live) {
  LiveCorrection anew = live;
  for (Pace* pace : {static_cast<Pace*>(&anew), &anew.idle}) {
    pace->prefill = {};
    pace->step = {};
    pace->ramp = {};
  }
  anew.biases.clear();
  anew.idle_calls = 0;
  return anew;
}

LiveCorrection Learn(const CostParameters& cost, const LiveCorrection& live,
                     const Observation& seen) {
  LiveCorrection next = live;
  LearnBiases(cost, seen, &next);  // by the pace that predicted
  static_cast<Pace&>(next) = LearnPace(cost, live, seen, seen.probe ? kProbeWeight : kFitWeight);
  const bool answered = seen.prefilled_tokens > 0 || seen.decoded_tokens > 0;
  if (seen.full_alone && answered) {
    ++next.idle_calls;
    const double weight = std::clamp(1.0 / next.idle_calls, kIdleWeight, kFitWeight);
    next.idle = LearnPace(cost, live.idle, seen, weight);
  }
  if (seen.tlm_bytes > 0 && seen.tlm_ms > 0) {
    next.tlm_us_per_byte =
        live.tlm_us_per_byte > 0
            ? live.tlm_us_per_byte * Blend(1, seen.tlm_ms, TlmMs(live, seen.tlm_bytes))
            : seen.tlm_ms * 1e3 / static_cast<double>(seen.tlm_bytes);
  }
  if (seen.tlm_too_slow && live.tlm_start_us_per_byte > 0) {
    // Nothing else would tell that it has become faster.
    next.tlm_us_per_byte +=
        kBackToStart * std::min(0.0, live.tlm_start_us_per_byte - live.tlm_us_per_byte);
  }
  if (seen.estimated_tokens > 0) {
    next.pruned_tokens_ratio =
        Blend(live.pruned_tokens_ratio, seen.counted_tokens, seen.estimated_tokens);
  }
  LearnApp(seen, &next);  // from what all calls before it were like
  LearnReliability(seen, kDeviationWeight, &next.reliability);
  if (seen.complete) {
    const double tokens = seen.decoded_tokens + 1.0;
    next.mean_completion_tokens =
        live.mean_completion_tokens + kFitWeight * (tokens - live.mean_completion_tokens);
  }
  return next;
}

}  // namespace withy::orchestrator
