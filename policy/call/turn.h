// Whose turn it is among calls that wait or share the board. Pure. Neighbours: admission.h starts
// calls in this order, step_plan.h computes their prompts in it.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

#include "policy/constants.h"

namespace withy::policy {

// What the turn of a call depends on.
struct Turn {
  int64_t deadline_ns = 0;  // steady time by which its first token is wanted; 0 = none
  int32_t priority = 0;     // higher goes first
  int64_t arrived_ns = 0;   // steady time
  uint64_t id = 0;          // breaks ties: the smaller goes first
};

// Smaller goes first.
inline auto Rank(const Turn& turn, int64_t now_ns) {
  const bool out_of_patience = now_ns - turn.arrived_ns >= kPatienceNs;
  const int64_t deadline = out_of_patience         ? std::numeric_limits<int64_t>::min()
                           : turn.deadline_ns == 0 ? std::numeric_limits<int64_t>::max()
                                                   : turn.deadline_ns;
  const int32_t priority = out_of_patience ? 0 : turn.priority;
  return std::make_tuple(deadline, -priority, turn.arrived_ns, turn.id);
}

// A strict weak order: calls that have waited kPatienceNs first, by arrival, so that nobody starves
// behind a stream of urgent calls; then by deadline (none = last), priority, arrival.
inline bool GoesBefore(const Turn& a, const Turn& b, int64_t now_ns) {
  return Rank(a, now_ns) < Rank(b, now_ns);
}

}  // namespace withy::policy
