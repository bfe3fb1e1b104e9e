#include "orchestrator/latency_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace withy::orchestrator {
namespace {

constexpr double kWeight = 0.2;  // of one observation
// The same, of the full model on the idle board, once many are known: what an SLO's ratios are of
// must not follow the last call's luck.
constexpr double kIdleWeight = 0.04;
constexpr double kMaxRatio = 8;  // of a line, and its inverse
// How far off one observation may count as, as a share of the prediction: what is learnt lies near
// the middle of what is seen, and the few calls that something held up do not move it.
constexpr double kMaxSurprise = 0.3;
constexpr double kMinSurpriseMs = 1;  // of the overhead
// So many surprises in a row are believed, and move a prediction half of the way.
constexpr int kBelieved = 4;
constexpr double kBelievedWeight = 0.5;
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
constexpr double kAnswerWeight = 0.1;  // of one answer, for how long those of an app are

constexpr double kRampWeight = 0.04;  // of one answer, for the ramp: a mean over 25 of them
constexpr double kRampPrior = 0.01;   // of there being none, beside all answers' 1
constexpr double kMaxRamp = 8;        // steps
// Answers after which one counts as at most kMaxSurprise off the line through those before.
constexpr double kRampKnown = 10;

constexpr double kMinShare = 0.01;
// Calibrated times for which a wrong prediction is half the constant's fault: a few times what
// constants are, so that the many short calls leave the ratio to the long ones.
constexpr double kShortPrefillMs = 10;
constexpr double kShortStepMs = 2;

double PrefillMs(const CostParameters& cost, const Pace& live, double tokens, double resident = 0) {
  return tokens > 0 ? live.prefill.Ms(PrefillUs(cost, tokens, resident) / 1e3) : 0;
}

// One decode step with `rows` rows.
double StepMs(const CostParameters& cost, const Pace& live, double rows) {
  if (rows <= 0) return 0;
  return live.step.Ms((cost.decode_us_per_token + (rows - 1) * cost.decode_us_per_extra_row) / 1e3);
}

// One decode step of a call at its own level, `depth` tokens deep, beside `others` rows of which
// nothing is known: they count as rows of the full model. As calibrated.
double OwnStepMs(const CostParameters& cost, const CostParameters& own, double depth,
                 double others) {
  return (own.decode_us_per_token + depth * own.decode_us_per_context_token +
          others * cost.decode_us_per_extra_row) /
         1e3;
}

double RowMs(const CostParameters& cost, const LiveCorrection& live) {
  return cost.decode_us_per_extra_row * live.step.ratio / 1e3;
}

// The place of `tokens` on the line through `a` and `b`.
double OnLine(const PrefillPoint& a, const PrefillPoint& b, double tokens) {
  const double slope = b.tokens > a.tokens ? (b.us - a.us) / (b.tokens - a.tokens) : 0;
  return a.us + std::max(slope, 0.0) * (tokens - a.tokens);
}

// Of an empty context. One token takes a decode step: a pass over the weights costs the same for a
// few rows.
double MeasuredPrefillUs(const CostParameters& cost, double tokens) {
  if (tokens <= 0) return 0;
  const std::vector<PrefillPoint>& points = cost.prefill;
  PrefillPoint low{1, std::min(cost.decode_us_per_token, points.front().us)};
  if (tokens <= low.tokens) return low.us;
  for (size_t i = 0; i < points.size(); ++i) {
    if (tokens <= points[i].tokens || i + 1 == points.size()) return OnLine(low, points[i], tokens);
    low = points[i];
  }
  return low.us;
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
  return std::clamp(old_value * (1 + kWeight * surprise), 1 / kMaxRatio, kMaxRatio);
}

// By how much a prediction moves; `least_ms`: what is off by less is no surprise.
double Correction(double measured_ms, double predicted_ms, double least_ms, double weight,
                  int* surprises) {
  const double limit_ms = std::max(least_ms, kMaxSurprise * predicted_ms);
  const double error_ms = measured_ms - predicted_ms;
  if (std::abs(error_ms) <= limit_ms) {
    *surprises = 0;
    return weight * error_ms;
  }
  const int sign = error_ms > 0 ? 1 : -1;
  *surprises = *surprises * sign > 0 ? *surprises + sign : sign;
  if (std::abs(*surprises) < kBelieved) return weight * sign * limit_ms;
  *surprises = sign * kBelieved;
  return kBelievedWeight * std::min(error_ms, std::max(least_ms, predicted_ms));
}

// Moves `line` towards what was measured for `calibrated_ms`; `short_ms`: a time like
// kShortPrefillMs.
void LearnLine(double measured_ms, double calibrated_ms, double short_ms, double weight,
               Line* line) {
  if (calibrated_ms <= 0 || measured_ms <= 0 || !std::isfinite(measured_ms)) return;
  const double correction_ms =
      Correction(measured_ms, line->Ms(calibrated_ms), /*least_ms=*/0, weight, &line->surprises);
  const double short_share = short_ms * short_ms;
  const double share = short_share / (short_share + calibrated_ms * calibrated_ms);
  const double constant_ms = std::max(0.0, line->constant_ms + share * correction_ms);
  const double rest_ms = correction_ms - (constant_ms - line->constant_ms);
  line->ratio = std::clamp(line->ratio + rest_ms / calibrated_ms, 1 / kMaxRatio, kMaxRatio);
  line->constant_ms = constant_ms;
}

void LearnBias(double measured_ms, double predicted_ms, double* bias) {
  if (measured_ms <= 0 || predicted_ms <= 0 || !std::isfinite(measured_ms)) return;
  const double surprise = std::clamp(measured_ms / predicted_ms - 1, -kMaxSurprise, kMaxSurprise);
  *bias = std::clamp(*bias * (1 + kBiasWeight * surprise), 1 / kMaxBias, kMaxBias);
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

// `calibrated_ms`: of a step.
void LearnRamp(const Observation& seen, double calibrated_ms, Ramp* ramp) {
  const double measured_ms = MeasuredDecodeMs(seen);
  if (measured_ms <= 0 || !std::isfinite(measured_ms) || calibrated_ms <= 0) return;
  ramp->Observe(seen.decoded_tokens, measured_ms / calibrated_ms);
}

double CalibratedPrefillMs(const CostParameters& own, const Observation& seen) {
  return PrefillUs(own, seen.prefilled_tokens, seen.resident_tokens) / 1e3;
}

double CalibratedStepMs(const CostParameters& cost, const CostParameters& own,
                        const Observation& seen) {
  const double depth = seen.resident_tokens + seen.prefilled_tokens + seen.decoded_tokens / 2.0;
  return OwnStepMs(cost, own, depth, std::max(seen.mean_decode_rows, 1.0) - 1);
}

Pace LearnPace(const CostParameters& cost, const Pace& pace, const Observation& seen,
               double weight) {
  const CostParameters& own = seen.level.has_value() ? *seen.level : cost;
  Pace next = pace;
  LearnLine(seen.prefill_ms, CalibratedPrefillMs(own, seen), kShortPrefillMs, weight,
            &next.prefill);
  if (seen.overhead_ms >= 0 && std::isfinite(seen.overhead_ms)) {
    // Waiting that the report did not name must not pass for overhead.
    next.overhead_ms += Correction(seen.overhead_ms, pace.overhead_ms, kMinSurpriseMs, weight,
                                   &next.overhead_surprises);
  }
  const double step_ms = CalibratedStepMs(cost, own, seen);
  LearnLine(MeasuredStepMs(pace, seen), step_ms, kShortStepMs, weight, &next.step);
  LearnRamp(seen, step_ms, &next.ramp);
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
  if (seen.prefilled_tokens > 0) {
    LearnBias(seen.prefill_ms, live->prefill.Ms(CalibratedPrefillMs(own, seen)) * found->prefill,
              &found->prefill);
  }
  LearnBias(MeasuredStepMs(*live, seen),
            live->step.Ms(CalibratedStepMs(cost, own, seen)) * found->step, &found->step);
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

double Share(double part, double whole) {
  return whole > 0 ? std::clamp(part / whole, kMinShare, 1.0) : 1.0;
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

LevelShare ShareOfLevel(std::span<const LevelCost> levels, uint32_t percent) {
  for (const LevelCost& level : levels) {
    if (level.percent != percent) continue;
    return {Share(level.flops, levels.back().flops),
            Share(level.weight_bytes, levels.back().weight_bytes)};
  }
  const double share = Share(percent, 100);
  return {share, share};
}

double PrefillUs(const CostParameters& cost, double tokens, double resident) {
  if (cost.prefill.empty()) return tokens * cost.prefill_us_per_token;
  const double alone = MeasuredPrefillUs(cost, tokens);
  if (tokens <= 0 || resident <= 0) return alone;
  return std::max(alone,
                  MeasuredPrefillUs(cost, resident + tokens) - MeasuredPrefillUs(cost, resident));
}

CostParameters Scaled(const CostParameters& full, const LevelShare& share) {
  CostParameters scaled = full;
  scaled.prefill_us_per_token *= share.prefill;
  for (PrefillPoint& point : scaled.prefill) point.us *= share.prefill;
  scaled.decode_us_per_token *= share.decode;
  scaled.decode_us_per_context_token *= share.decode;
  return scaled;
}

CostParameters CostOfLevel(const CostParameters& full, std::span<const LevelCost> levels,
                           uint32_t percent) {
  for (const LevelCost& level : levels) {
    if (level.percent == percent && level.measured.has_value()) return *level.measured;
  }
  return Scaled(full, ShareOfLevel(levels, percent));
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

double TpotOfLength(double tpot_ms, double ramp_ms, double answer_tokens, double tokens) {
  return tpot_ms + ramp_ms * (1 / (std::max(tokens, 2.0) - 1) - 1 / (answer_tokens - 1));
}

double Prediction::TpotMs(double tokens) const {
  return TpotOfLength(tpot_ms, ramp_ms, answer_tokens, tokens);
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
    prefills_ms.push_back(PrefillMs(cost, live, other.prefill_tokens));
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
  const double decoding =
      std::min<double>(load.running.size() + load.ahead.size(), std::max(load.slots, 1u) - 1.0);
  const double prefill_ms = prefill_before_ms + own_prefill_ms;
  const double pieces = std::floor(prefill_ms / std::max(load.piece_ms, 1.0));
  out.ttft_ms = live.overhead_ms + call.tlm_ms + out.wait_ms + prefill_ms +
                pieces * StepMs(cost, live, decoding);
  const double depth = call.resident_tokens + call.prefill_tokens + call.max_tokens / 2.0;
  const double token_ms = live.step.Ms(OwnStepMs(cost, own, depth, decoding)) * bias.step;
  const double answer = std::min<double>(
      call.max_tokens, call.answer_tokens > 0 ? call.answer_tokens : live.mean_completion_tokens);
  out.answer_tokens = std::max(answer, 2.0);
  out.ramp_ms = live.ramp.Steps() * token_ms;
  out.tpot_ms = token_ms + out.ramp_ms / (out.answer_tokens - 1);
  out.end_to_end_ms = EndToEnd(out.ttft_ms, out.TpotMs(call.max_tokens), call.max_tokens);
  const double step_ms = live.step.Ms(OwnStepMs(cost, own, depth, /*others=*/0)) * bias.step;
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

CallDemand DemandOf(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                    const Prediction& predicted, const std::optional<CostParameters>& lowest) {
  const CostParameters& own = call.level.has_value() ? *call.level : cost;
  CallDemand demand;
  if (lowest.has_value()) {
    const double tokens = std::max(1u, call.prefill_tokens);
    demand.least_share = std::max(Share(lowest->decode_us_per_token, own.decode_us_per_token),
                                  Share(PrefillUs(*lowest, tokens, call.resident_tokens),
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

LiveCorrection Learn(const CostParameters& cost, const LiveCorrection& live,
                     const Observation& seen) {
  LiveCorrection next = live;
  LearnBiases(cost, seen, &next);  // by the pace that predicted
  static_cast<Pace&>(next) = LearnPace(cost, live, seen, kWeight);
  const bool answered = seen.prefilled_tokens > 0 || seen.decoded_tokens > 0;
  if (seen.full_alone && answered) {
    ++next.idle_calls;
    const double weight = std::clamp(1.0 / next.idle_calls, kIdleWeight, kWeight);
    next.idle = LearnPace(cost, live.idle, seen, weight);
  }
  if (seen.tlm_bytes > 0 && seen.tlm_ms > 0) {
    next.tlm_us_per_byte =
        live.tlm_us_per_byte > 0
            ? live.tlm_us_per_byte * Blend(1, seen.tlm_ms, TlmMs(live, seen.tlm_bytes))
            : seen.tlm_ms * 1e3 / static_cast<double>(seen.tlm_bytes);
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
        live.mean_completion_tokens + kWeight * (tokens - live.mean_completion_tokens);
  }
  return next;
}

}  // namespace withy::orchestrator
