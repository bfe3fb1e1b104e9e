#include "wire/call_targets.h"

namespace withy::wire {

void TargetsToWire(const policy::CallTargets& targets, v1::RunRequest* run) {
  run->set_tpot_limit_ms(targets.tpot_ms < policy::kNoLimit ? targets.TokenMs() : 0);
  run->set_ramp_ms(targets.ramp_ms);
  run->set_end_by_steady_ns(targets.EndByNs());
  run->set_first_token_by_steady_ns(targets.FirstTokenByNs());
}

}  // namespace withy::wire
