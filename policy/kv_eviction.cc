#include "policy/kv_eviction.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace withy::policy {
namespace {

using EvictableChunks = std::span<const EvictableChunk>;

// Oldest use first, then from the end of the context. Smaller goes first, as in all ranks here.
auto AgeRank(const EvictableChunk& chunk) {
  return std::make_tuple(chunk.last_used, chunk.context, ~chunk.position);
}

auto LctruRank(const EvictableChunk& chunk) {
  return std::make_tuple(chunk.place.format, chunk.last_used, !chunk.place.copy.has_value(),
                         chunk.context, ~chunk.position);
}

template <typename Rank>
void SortBy(const Rank& rank, std::vector<size_t>* indices) {
  std::sort(indices->begin(), indices->end(),
            [&](size_t a, size_t b) { return rank(a) < rank(b); });
}

std::vector<size_t> EvictionOrder(EvictableChunks chunks, EvictionPolicy policy) {
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  switch (policy) {
    case EvictionPolicy::kLctru:
      SortBy([&](size_t i) { return LctruRank(chunks[i]); }, &order);
      break;
    case EvictionPolicy::kChunkLru:
      SortBy([&](size_t i) { return AgeRank(chunks[i]); }, &order);
      break;
    case EvictionPolicy::kContextLru: {
      std::map<uint32_t, uint64_t> latest_use;
      for (const EvictableChunk& chunk : chunks) {
        uint64_t& latest = latest_use[chunk.context];
        latest = std::max(latest, chunk.last_used);
      }
      SortBy(
          [&](size_t i) {
            const EvictableChunk& chunk = chunks[i];
            return std::make_tuple(latest_use[chunk.context], chunk.context, ~chunk.position);
          },
          &order);
      break;
    }
  }
  return order;
}

// The plan being made; lives as long as PlanKvEviction takes.
class EvictionPlanner {
 public:
  EvictionPlanner(EvictableChunks chunks, uint64_t writable_bytes)
      : chunks_(chunks), writable_bytes_(writable_bytes) {}

  bool CanBeReadBack(size_t i) const {
    return chunks_[i].place.copy.has_value() ||
           chunks_[i].bytes <= writable_bytes_ - plan_.written_bytes;
  }

  void Evict(size_t i) {
    if (!CanBeReadBack(i)) {
      ++plan_.to_recompute;
    } else if (!chunks_[i].place.copy.has_value()) {
      plan_.actions.push_back({i, {KvAction::Kind::kWrite}});
      plan_.written_bytes += chunks_[i].bytes;
    }
    plan_.actions.push_back({i, {KvAction::Kind::kDrop}});
    plan_.freed_bytes += chunks_[i].bytes;
  }

  EvictionPlan Take() { return std::move(plan_); }
  uint64_t freed_bytes() const { return plan_.freed_bytes; }

 private:
  const EvictableChunks chunks_;
  const uint64_t writable_bytes_;
  EvictionPlan plan_;
};

}  // namespace

EvictionPlan PlanKvEviction(EvictableChunks chunks, uint64_t bytes_to_free, uint64_t writable_bytes,
                            EvictionPolicy policy) {
  uint64_t available = 0;
  for (const EvictableChunk& chunk : chunks) available += chunk.bytes;
  if (bytes_to_free == 0 || available < bytes_to_free) return {};
  EvictionPlanner planner(chunks, writable_bytes);
  std::vector<size_t> last;
  const EvictableChunk* previous = nullptr;
  for (const size_t i : EvictionOrder(chunks, policy)) {
    const bool context_goes_on = policy == EvictionPolicy::kContextLru && previous != nullptr &&
                                 previous->context == chunks[i].context;
    if (planner.freed_bytes() >= bytes_to_free && !context_goes_on) break;
    previous = &chunks[i];
    if (policy == EvictionPolicy::kLctru && !planner.CanBeReadBack(i)) {
      last.push_back(i);
    } else {
      planner.Evict(i);
    }
  }
  SortBy([&](size_t i) { return AgeRank(chunks[i]); }, &last);
  for (const size_t i : last) {
    if (planner.freed_bytes() >= bytes_to_free) break;
    planner.Evict(i);
  }
  return planner.Take();
}

}  // namespace withy::policy
