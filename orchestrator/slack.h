// How much delay a running call can bear before it misses its SLO even if it falls to its lowest
// level, and how long a new one has to wait so that it bears it. Pure. Neighbours: calls.h admits
// by it, latency_model.h adds the wait to its predictions. See docs/method-decisions.md, While
// it runs.
#pragma once

#include <cstdint>
#include <limits>

namespace withy::orchestrator {

// Tokens that a running call is looked ahead: its answer may end after any of them, and has to be
// in time then.
inline constexpr uint32_t kSlackTokens = 4;

// What a call takes, as it was predicted when it was admitted, and what it was promised.
struct CallDemand {
  double prefill_ms = 0;  // of its own prompt at its level
  double token_ms = 0;    // a decode step that it has a part in
  double row_ms = 0;      // what its row adds to a step
  // The lowest level that it may fall to takes this share of both. Range (0, 1].
  double least_share = 1;
  // Limits; 0 = none.
  int64_t first_token_by_ns = 0;
  double tpot_limit_ms = 0;  // for each token
  double ramp_ms = 0;        // and once more, for the first ones
  int64_t end_by_ns = 0;
};

// Where a running call stands.
struct CallProgress {
  int64_t granted_ns = 0;
  int64_t first_token_ns = 0;  // 0 = none yet
  uint32_t generated = 0;
  int64_t told_ns = 0;     // when the last of them came; 0 = now
  uint32_t remaining = 0;  // at most
};

struct Slack {
  double ms = std::numeric_limits<double>::infinity();  // negative: its SLO is missed already
  double gain = 0;                                      // milliseconds of slack won in each
  double left_ms = 0;                                   // until it ends, at most
  uint32_t left_tokens = 0;
};

Slack SlackOf(const CallDemand& demand, const CallProgress& progress, int64_t now_ns);

// Of its prefill a running call has so much to go.
double LeftPrefillMs(const CallDemand& demand, const CallProgress& progress, int64_t now_ns);

// A call that would start.
struct Newcomer {
  double prefill_ms = 0;
  double row_ms = 0;
};

// How long `newcomer` has to wait for one running call: 0 when the call bears it, has no SLO, or
// misses it anyway. `pending_prefill_ms`: of other calls that are still to delay it. `piece_ms`:
// longest piece of a prefill between two of its tokens. At most until the running call has ended.
double HoldMs(const Newcomer& newcomer, const Slack& running, double pending_prefill_ms,
              double piece_ms);

}  // namespace withy::orchestrator
