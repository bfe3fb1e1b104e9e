#include "policy/board/latency_learning.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "policy/board/latency_model.h"
#include "policy/constants.h"

namespace withy::policy {
namespace {

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

// Time of a call's decode steps without the prefill of others; 0: too little of it to learn from.
double MeasuredDecodeMs(const Observation& seen) {
  const double own_ms = seen.decode_ms - seen.foreign_prefill_ms;
  const bool measurable =
      seen.decoded_tokens > 0 && own_ms >= kLeastOwnDecodeShare * seen.decode_ms;
  return measurable ? own_ms : 0;
}

// Each of them, the ramp aside.
double MeasuredStepMs(const MeasuredSpeed& speed, const Observation& seen) {
  return MeasuredDecodeMs(seen) / (std::max(1u, seen.decoded_tokens) + speed.ramp.Steps());
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

MeasuredSpeed LearnSpeed(const CostParameters& cost, const MeasuredSpeed& speed, double slowdown,
                         const Observation& seen, double weight) {
  const CostParameters& own = seen.level.has_value() ? *seen.level : cost;
  MeasuredSpeed next = speed;
  next.prefill.Learn(ObservedPrefill(own, seen) * slowdown, seen.prefill_ms, kShortPrefillMs,
                     weight);
  if (seen.overhead_ms >= 0 && std::isfinite(seen.overhead_ms)) {
    // Waiting that the report did not name must not pass for overhead.
    next.overhead_ms += Correction(seen.overhead_ms, speed.overhead_ms, kLeastOverheadSurpriseMs,
                                   weight, &next.overhead_surprises);
  }
  const Work step = ObservedStep(cost, own, seen) * slowdown;
  next.step.Learn(step, MeasuredStepMs(speed, seen), kShortStepMs, weight);
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
    LearnBias(seen.prefill_ms, live->PrefillMs(ObservedPrefill(own, seen)) * found->prefill, weight,
              &found->prefill);
  }
  LearnBias(MeasuredStepMs(*live, seen), live->StepMs(ObservedStep(cost, own, seen)) * found->step,
            weight, &found->step);
}

void LearnReliability(const Observation& seen, double weight, Reliability* reliability) {
  const auto learn = [&](double share, Deviation* deviation) {
    if (share > 0 && std::isfinite(share)) deviation->Observe(std::log(share), weight);
  };
  learn(seen.ttft_share, &reliability->ttft);
  learn(seen.tpot_share, &reliability->tpot);
}

auto FindApp(std::vector<AppHistory>& apps, const std::string& name) {
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
  app.speculation.Observe(seen.speedup);
  if (seen.complete) {
    const double tokens = seen.decoded_tokens + 1.0;
    const double weight = app.answer_tokens > 0 ? kAnswerWeight : 1;
    app.answer_tokens += weight * (tokens - app.answer_tokens);
  }
  LearnReliability(seen, std::max(kDeviationWeight, 1 / (kAppPriorCalls + app.calls)),
                   &app.reliability);
}

}  // namespace

LiveCorrection ForNewCost(const LiveCorrection& live) {
  LiveCorrection anew = live;
  for (MeasuredSpeed* speed : {static_cast<MeasuredSpeed*>(&anew), &anew.idle}) {
    speed->prefill = {};
    speed->step = {};
    speed->ramp = {};
  }
  anew.biases.clear();
  anew.idle_calls = 0;
  return anew;
}

LiveCorrection Learn(const CostParameters& cost, const LiveCorrection& live,
                     const Observation& seen) {
  LiveCorrection next = live;
  LearnBiases(cost, seen, &next);  // by the pace that predicted
  static_cast<MeasuredSpeed&>(next) =
      LearnSpeed(cost, live, live.slowdown, seen, seen.probe ? kProbeWeight : kFitWeight);
  const bool answered = seen.prefilled_tokens > 0 || seen.decoded_tokens > 0;
  if (seen.full_alone && answered) {
    ++next.idle_calls;
    const double weight = std::clamp(1.0 / next.idle_calls, kIdleWeight, kFitWeight);
    next.idle = LearnSpeed(cost, live.idle, live.slowdown, seen, weight);
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
        kTlmRecovery * std::min(0.0, live.tlm_start_us_per_byte - live.tlm_us_per_byte);
  }
  if (seen.estimated_tokens > 0) {
    next.pruned_tokens_ratio =
        Blend(live.pruned_tokens_ratio, seen.counted_tokens, seen.estimated_tokens);
  }
  if (answered) next.EndCall();
  LearnApp(seen, &next);  // from what all calls before it were like
  LearnReliability(seen, kDeviationWeight, &next.reliability);
  if (seen.complete) {
    const double tokens = seen.decoded_tokens + 1.0;
    next.mean_completion_tokens =
        live.mean_completion_tokens + kFitWeight * (tokens - live.mean_completion_tokens);
  }
  return next;
}

}  // namespace withy::policy
