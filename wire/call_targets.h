// What a call must meet, between the worker's contract and policy/. The one place that reads and
// writes it.
#pragma once

#include "policy/call_targets.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::wire {

void TargetsToWire(const policy::CallTargets& targets, v1::RunRequest* run);

}  // namespace withy::wire
