#include "wire/decision.h"

#include <algorithm>

namespace withy::wire {

policy::Slo SloFromWire(const v1::Slo& slo) {
  return {.ttft_ratio = slo.ttft_ratio(),
          .tpot_ratio = slo.tpot_ratio(),
          .ttft_ms = slo.ttft_ms(),
          .tpot_ms = slo.tpot_ms(),
          .end_to_end_ms = slo.end_to_end_ms(),
          .strict = slo.strict()};
}

v1::Slo ToWire(const policy::Slo& slo) {
  v1::Slo wire;
  wire.set_ttft_ratio(slo.ttft_ratio);
  wire.set_tpot_ratio(slo.tpot_ratio);
  wire.set_ttft_ms(slo.ttft_ms);
  wire.set_tpot_ms(slo.tpot_ms);
  wire.set_end_to_end_ms(slo.end_to_end_ms);
  wire.set_strict(slo.strict);
  return wire;
}

policy::Latency LatencyFromWire(const v1::Latency& latency) {
  return {.ttft_ms = latency.ttft_ms(),
          .tpot_ms = latency.tpot_ms(),
          .end_to_end_ms = latency.end_to_end_ms()};
}

v1::Latency ToWire(const policy::Latency& latency) {
  v1::Latency wire;
  wire.set_ttft_ms(latency.ttft_ms);
  wire.set_tpot_ms(latency.tpot_ms);
  wire.set_end_to_end_ms(latency.end_to_end_ms);
  return wire;
}

v1::DecisionReason ToWire(policy::DecisionReason reason) {
  switch (reason) {
    case policy::DecisionReason::kFullMeetsSlo:
      return v1::DECISION_REASON_FULL_MEETS_SLO;
    case policy::DecisionReason::kTlm:
      return v1::DECISION_REASON_TLM;
    case policy::DecisionReason::kLatencyModel:
      return v1::DECISION_REASON_LATENCY_MODEL;
    case policy::DecisionReason::kFixedByCaller:
      return v1::DECISION_REASON_FIXED_BY_CALLER;
    case policy::DecisionReason::kBestEffort:
      return v1::DECISION_REASON_BEST_EFFORT;
  }
  return v1::DECISION_REASON_UNSPECIFIED;
}

v1::Decision ToWire(const policy::Decision& decision) {
  v1::Decision wire;
  wire.set_model_level_percent(decision.model_level_percent);
  wire.set_prompt_level_percent(decision.prompt_level_percent);
  wire.set_speculation(decision.speculation);
  wire.set_expected_speedup(decision.expected_speedup);
  wire.set_reason(ToWire(decision.reason));
  wire.set_explanation(decision.explanation);
  wire.set_predicted_to_meet_slo(decision.predicted_to_meet_slo);
  *wire.mutable_predicted() = ToWire(decision.predicted);
  *wire.mutable_full_model() = ToWire(static_cast<const policy::Latency&>(decision.full_model));
  wire.set_answer_tokens(decision.full_model.answer_tokens);
  wire.set_full_model_ramp_ms(decision.full_model.ramp_ms);
  wire.set_full_model_growth_ms(decision.full_model.growth_ms);
  wire.set_predicted_prompt_tokens(decision.prefill_tokens);
  wire.set_predicted_reused_tokens(decision.reused_tokens);
  wire.set_dropped_messages(decision.dropped_messages);
  return wire;
}

policy::AnswerLatency FullModelFromWire(const v1::Decision& decision) {
  policy::AnswerLatency full;
  static_cast<policy::Latency&>(full) = LatencyFromWire(decision.full_model());
  full.answer_tokens = std::max(2.0, decision.answer_tokens());
  full.ramp_ms = decision.full_model_ramp_ms();
  full.growth_ms = decision.full_model_growth_ms();
  return full;
}

}  // namespace withy::wire
