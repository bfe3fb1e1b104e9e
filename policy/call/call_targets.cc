#include "policy/call/call_targets.h"

#include <algorithm>
#include <cmath>

namespace withy::policy {
namespace {

bool Within(double value_ms, double target_ms) { return value_ms <= target_ms * (1 + 1e-9); }

}  // namespace

double CallTargets::TpotMs(double tokens) const {
  return TpotOfLength(tpot_ms, ramp_ms, growth_ms, answer_tokens, tokens);
}

double CallTargets::TokenMs() const { return tpot_ms - ramp_ms / (answer_tokens - 1); }

int64_t CallTargets::FirstTokenByNs() const { return NanosAfter(arrived_ns, ttft_ms); }

int64_t CallTargets::EndByNs() const { return NanosAfter(arrived_ns, end_to_end_ms); }

int64_t NanosAfter(int64_t from_ns, double ms) {
  return std::isfinite(ms) ? from_ns + static_cast<int64_t>(ms * kNanosPerMilli) : 0;
}

double TpotOfLength(double tpot_ms, double ramp_ms, double growth_ms, double answer_tokens,
                    double tokens) {
  const double length = std::max(tokens, 2.0);
  return tpot_ms + ramp_ms * (1 / (length - 1) - 1 / (answer_tokens - 1)) +
         growth_ms * (length - answer_tokens);
}

CallTargets ResolveSlo(const Slo& slo, const AnswerLatency& full) {
  CallTargets targets;
  if (slo.ttft_ratio > 0) targets.ttft_ms = slo.ttft_ratio * full.ttft_ms;
  if (slo.tpot_ratio > 0) {
    targets.tpot_ms = slo.tpot_ratio * full.tpot_ms;
    targets.ramp_ms = slo.tpot_ratio * full.ramp_ms;
    targets.growth_ms = slo.tpot_ratio * full.growth_ms;
    targets.answer_tokens = full.answer_tokens;
  }
  if (slo.ttft_ms > 0) targets.ttft_ms = slo.ttft_ms;
  if (slo.tpot_ms > 0) targets.tpot_ms = slo.tpot_ms;
  if (slo.end_to_end_ms > 0) targets.end_to_end_ms = slo.end_to_end_ms;
  return targets;
}

SloRatios RatiosOf(const Slo& slo, const AnswerLatency& full) {
  const auto share = [](double target_ms, double full_ms) {
    constexpr double kSmallest = 1e-3;
    return full_ms > 0 ? std::clamp(target_ms / full_ms, kSmallest, 1.0) : 1.0;
  };
  SloRatios ratios;
  if (slo.ttft_ratio > 0) ratios.ttft = slo.ttft_ratio;
  if (slo.tpot_ratio > 0) ratios.tpot = slo.tpot_ratio;
  if (slo.ttft_ms > 0) ratios.ttft = share(slo.ttft_ms, full.ttft_ms);
  if (slo.tpot_ms > 0) ratios.tpot = share(slo.tpot_ms, full.tpot_ms);
  if (slo.end_to_end_ms > 0) {
    ratios.ttft = ratios.tpot = share(slo.end_to_end_ms, full.end_to_end_ms);
  }
  return ratios;
}

CallTargets Tolerate(const Slo& slo, const CallTargets& targets) {
  CallTargets wider = targets;
  if (slo.ttft_ratio > 0) wider.ttft_ms *= 1 + kRatioTolerance;
  if (slo.tpot_ratio > 0) {
    wider.tpot_ms *= 1 + kRatioTolerance;
    wider.ramp_ms *= 1 + kRatioTolerance;
    wider.growth_ms *= 1 + kRatioTolerance;
  }
  return wider;
}

bool Meets(const CallTargets& targets, const Latency& latency, double tokens) {
  return Within(latency.ttft_ms, targets.ttft_ms) &&
         Within(latency.tpot_ms, targets.TpotMs(tokens)) &&
         Within(latency.end_to_end_ms, targets.end_to_end_ms);
}

}  // namespace withy::policy
