// Slack: the delay that a running call survives without missing its targets, at its lowest level if
// need be; and how long a new call must wait so that no running call is delayed by more. Pure.
// Neighbours: admission.h admits by it, latency_model.h adds the wait to its predictions. See
// docs/method-decisions.md, While it runs.
#pragma once

#include <cstdint>
#include <limits>

#include "policy/call/call_targets.h"

namespace withy::policy {

// What a call takes, as predicted when it was admitted, and what it must meet.
struct CallDemand {
  double prefill_ms = 0;  // of its own prompt at its level
  double token_ms = 0;    // a decode step that it has a part in
  double row_ms = 0;      // what its row adds to a step
  // The lowest level that it may fall to takes this share of both. Range (0, 1].
  double least_share = 1;
  CallTargets targets = {};
};

// Where a running call stands.
struct CallProgress {
  int64_t granted_ns = 0;
  int64_t first_token_ns = 0;  // 0 = none yet
  uint32_t generated = 0;
  int64_t told_ns = 0;     // when the last of them was told; 0 = now
  uint32_t remaining = 0;  // at most
};

struct Slack {
  double ms = std::numeric_limits<double>::infinity();  // negative: its SLO is missed already
  double gain = 0;                                      // milliseconds of slack won in each
  double left_ms = 0;                                   // until it ends, at most
  uint32_t left_tokens = 0;
};

Slack SlackOf(const CallDemand& demand, const CallProgress& progress, int64_t now_ns);

// What is left of a running call's prefill.
double LeftPrefillMs(const CallDemand& demand, const CallProgress& progress, int64_t now_ns);

// A call that would start.
struct Newcomer {
  double prefill_ms = 0;
  double row_ms = 0;
};

// How long `newcomer` has to wait for one running call: 0 when that call's slack covers the delay,
// when it has no targets, and when it misses them anyway. `pending_prefill_ms`: prefill of other
// calls that is still to delay it. `piece_ms`: longest piece of a prefill between two of its
// tokens. At most until the running call has ended.
double HoldMs(const Newcomer& newcomer, const Slack& running, double pending_prefill_ms,
              double piece_ms);

}  // namespace withy::policy
