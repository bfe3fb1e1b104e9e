// How much of the KV arena is given back to the system when the board is short of memory. Pure. The
// measure is the share of time in which some task waited for memory (the kernel's pressure stall
// information). Neighbour: context_store/pressure_watch.cc measures and carries out. Source: ours;
// LLMS has a fixed budget.
#pragma once

#include <cstdint>

namespace withy::policy {

struct ShrinkRules {
  double shrink_share = 0.1;  // of time stalled, above which the arena shrinks; 1: never
  // Observations without pressure before the arena grows, and from one growth to the next.
  uint32_t quiet_before_growth = 30;
  uint32_t quiet_between_growths = 10;
};

// Shrinks fast and grows slowly, so that a board at its limit is not driven back into pressure by
// what it was just given. Not thread-safe.
class ArenaShrink {
 public:
  // Shares of the arena: of one step down, of one step up, and what always stays.
  static constexpr uint64_t kShrinkDivisor = 8;
  static constexpr uint64_t kGrowthDivisor = 16;
  static constexpr uint64_t kStaysDivisor = 4;

  ArenaShrink(uint64_t arena_bytes, const ShrinkRules& rules)
      : arena_bytes_(arena_bytes), rules_(rules) {}

  // One observation: the share of the time since the last one in which some task waited for memory.
  // Returns the bytes of the arena that should be out of use from now on.
  uint64_t Observe(double stalled_share);
  uint64_t withheld_bytes() const { return withheld_; }

 private:
  const uint64_t arena_bytes_;
  const ShrinkRules rules_;
  uint64_t withheld_ = 0;
  uint32_t quiet_ = 0;
};

}  // namespace withy::policy
