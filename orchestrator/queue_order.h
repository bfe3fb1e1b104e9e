// Who goes first among waiting calls. Pure.
//
// Earliest deadline first; calls without a deadline come after those with one, but one that has
// waited for kPatienceNs goes before all, so that nobody starves. Among equals the higher priority,
// then the earlier arrival.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

namespace withy::orchestrator {

inline constexpr int64_t kPatienceNs = 30'000'000'000;

struct QueueKey {
  int64_t deadline_ns = 0;  // when the first token is wanted; 0 = none
  int32_t priority = 0;
  int64_t arrived_ns = 0;
  uint64_t id = 0;
};

// Smaller goes first.
inline auto Rank(const QueueKey& key, int64_t now_ns) {
  const bool patient_enough = key.deadline_ns == 0 && now_ns - key.arrived_ns >= kPatienceNs;
  const int group = patient_enough ? 0 : key.deadline_ns != 0 ? 1 : 2;
  const int64_t when = patient_enough ? 0 : key.deadline_ns;
  return std::make_tuple(group, when, -key.priority, key.arrived_ns, key.id);
}

inline bool GoesBefore(const QueueKey& a, const QueueKey& b, int64_t now_ns) {
  return Rank(a, now_ns) < Rank(b, now_ns);
}

}  // namespace withy::orchestrator
