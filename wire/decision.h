// SLOs, latencies and decisions between the contract's messages and policy/. Neighbours:
// policy/call/decide.h, policy/call/call_targets.h.
#pragma once

#include "policy/call/call_targets.h"
#include "policy/call/decide.h"
#include "withy/v1/types.pb.h"

namespace withy::wire {

policy::Slo SloFromWire(const v1::Slo& slo);
v1::Slo ToWire(const policy::Slo& slo);

policy::Latency LatencyFromWire(const v1::Latency& latency);
v1::Latency ToWire(const policy::Latency& latency);

v1::DecisionReason ToWire(policy::DecisionReason reason);
v1::Decision ToWire(const policy::Decision& decision);
// What ratios of a stored decision's SLO were shares of.
policy::AnswerLatency FullModelFromWire(const v1::Decision& decision);

}  // namespace withy::wire
