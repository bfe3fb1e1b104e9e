// What a call must meet and when it is its turn, between the worker's contract and policy/. The one
// place that reads and writes them.
#pragma once

#include "policy/call/call_targets.h"
#include "policy/call/turn.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::wire {

v1::CallTargets ToWire(const policy::CallTargets& targets);
policy::CallTargets TargetsFromWire(const v1::CallTargets& wire);

// The turn's deadline and priority; when a call arrived and its id are the worker's own.
void TurnToWire(const policy::Turn& turn, v1::RunRequest* run);
policy::Turn TurnFromWire(const v1::RunRequest& run);

}  // namespace withy::wire
