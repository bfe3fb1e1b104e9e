#include "policy/kv/kv_eviction.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace withy::policy {
namespace {

using EvictableChunks = std::span<const EvictableChunk>;

// What goes first has the smaller rank: three keys of the policy, then the context, then the end of
// the context before its start. The last number is the chunk.
using EvictionRank = std::tuple<uint64_t, uint64_t, uint64_t, uint32_t, uint32_t, size_t>;

// Only the chunks that leave are sorted, which are few beside those in the arena.
using EvictionQueue =
    std::priority_queue<EvictionRank, std::vector<EvictionRank>, std::greater<EvictionRank>>;

EvictionQueue QueueChunks(EvictableChunks chunks, EvictionPolicy policy) {
  std::unordered_map<uint32_t, uint64_t> latest_use;
  if (policy == EvictionPolicy::kContextLru) {
    for (const EvictableChunk& chunk : chunks) {
      uint64_t& latest = latest_use[chunk.context];
      latest = std::max(latest, chunk.last_used);
    }
  }
  std::vector<EvictionRank> ranks;
  ranks.reserve(chunks.size());
  for (const EvictableChunk& chunk : chunks) {
    EvictionRank rank{0, 0, 0, chunk.context, ~chunk.position, ranks.size()};
    switch (policy) {
      case EvictionPolicy::kLctru:
        std::get<0>(rank) = chunk.last_used;
        std::get<1>(rank) = chunk.place.copy.has_value() ? 0 : 1;
        std::get<2>(rank) = chunk.place.format;
        break;
      case EvictionPolicy::kChunkLru:
        std::get<0>(rank) = chunk.last_used;
        break;
      case EvictionPolicy::kContextLru:
        std::get<0>(rank) = latest_use[chunk.context];
        break;
    }
    ranks.push_back(rank);
  }
  return EvictionQueue({}, std::move(ranks));
}

}  // namespace

std::vector<size_t> PlanKvEviction(EvictableChunks chunks, uint64_t bytes_to_free,
                                   EvictionPolicy policy) {
  uint64_t available = 0, freed = 0;
  for (const EvictableChunk& chunk : chunks) available += chunk.bytes;
  if (bytes_to_free == 0 || available < bytes_to_free) return {};
  std::vector<size_t> dropped, last;
  const auto drop = [&](size_t i) {
    dropped.push_back(i);
    freed += chunks[i].bytes;
  };
  for (EvictionQueue queue = QueueChunks(chunks, policy); !queue.empty(); queue.pop()) {
    const size_t i = std::get<5>(queue.top());
    const bool context_goes_on = policy == EvictionPolicy::kContextLru && !dropped.empty() &&
                                 chunks[dropped.back()].context == chunks[i].context;
    if (freed >= bytes_to_free && !context_goes_on) break;
    if (policy == EvictionPolicy::kLctru && !chunks[i].place.copy.has_value()) {
      last.push_back(i);
    } else {
      drop(i);
    }
  }
  std::sort(last.begin(), last.end(), [&](size_t a, size_t b) {
    return std::tuple(chunks[a].last_used, chunks[a].context, chunks[b].position) <
           std::tuple(chunks[b].last_used, chunks[b].context, chunks[a].position);
  });
  for (const size_t i : last) {
    if (freed >= bytes_to_free) break;
    drop(i);
  }
  return dropped;
}

}  // namespace withy::policy
