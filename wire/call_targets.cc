#include "wire/call_targets.h"

#include <algorithm>

namespace withy::wire {
namespace {

double LimitToWire(double ms) { return ms < policy::kNoLimit ? ms : 0; }
double LimitFromWire(double ms) { return ms > 0 ? ms : policy::kNoLimit; }

}  // namespace

v1::CallTargets ToWire(const policy::CallTargets& targets) {
  v1::CallTargets wire;
  if (!targets.any()) return wire;
  wire.set_arrived_steady_ns(targets.arrived_ns);
  wire.set_ttft_ms(LimitToWire(targets.ttft_ms));
  wire.set_tpot_ms(LimitToWire(targets.tpot_ms));
  wire.set_end_to_end_ms(LimitToWire(targets.end_to_end_ms));
  wire.set_ramp_ms(targets.ramp_ms);
  wire.set_growth_ms(targets.growth_ms);
  wire.set_answer_tokens(targets.answer_tokens);
  return wire;
}

policy::CallTargets TargetsFromWire(const v1::CallTargets& wire) {
  return {.ttft_ms = LimitFromWire(wire.ttft_ms()),
          .tpot_ms = LimitFromWire(wire.tpot_ms()),
          .end_to_end_ms = LimitFromWire(wire.end_to_end_ms()),
          .ramp_ms = wire.ramp_ms(),
          .growth_ms = wire.growth_ms(),
          .answer_tokens = std::max(2.0, wire.answer_tokens()),
          .arrived_ns = wire.arrived_steady_ns()};
}

void TurnToWire(const policy::Turn& turn, v1::RunRequest* run) {
  run->set_priority(turn.priority);
  run->set_deadline_steady_ns(turn.deadline_ns);
}

policy::Turn TurnFromWire(const v1::RunRequest& run) {
  return {.deadline_ns = run.deadline_steady_ns(), .priority = run.priority()};
}

}  // namespace withy::wire
