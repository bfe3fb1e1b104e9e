// The free space of the arena: gaps, by place and by size. Places and sizes are in units of 64
// bytes (engine/kv/memory.h). Neighbour: slot_pool.h cuts slots out of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace withy::context_store {

struct Gap {
  uint32_t at = 0;
  uint32_t units = 0;
  uint64_t end() const { return uint64_t{at} + units; }
};

// Not thread-safe. Always: gaps neither overlap nor touch.
class Gaps {
 public:
  using ByPlace = std::map<uint32_t, uint32_t>;  // units by place

  void Clear();
  // Frees space that is in no gap; merges it with the gaps beside it.
  void Add(Gap freed);
  // Takes space out of the gap that has it all; false: part of it is not free.
  [[nodiscard]] bool Cut(Gap taken);

  // The smallest one of at least `units`; nullopt: there is none.
  std::optional<Gap> Smallest(uint32_t units) const;
  Gap Largest() const;  // of 0 units: there is none
  std::optional<Gap> EndingAt(uint32_t end) const;
  const ByPlace& all() const { return gaps_; }

 private:
  void Remove(ByPlace::const_iterator gap);

  ByPlace gaps_;
  std::set<std::pair<uint32_t, uint32_t>> by_size_;  // (units, place) of each
};

}  // namespace withy::context_store
