#include "context_store/eviction.h"

#include <algorithm>
#include <numeric>

namespace withy::context_store {

std::vector<Eviction> EvictionOrder(std::span<const IdleContext> contexts) {
  std::vector<uint32_t> order(contexts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return contexts[a].last_used < contexts[b].last_used; });
  std::vector<Eviction> plan;
  for (uint32_t index : order) {
    const std::vector<uint64_t>& chunks = contexts[index].chunks;
    for (auto chunk = static_cast<uint32_t>(chunks.size()); chunk-- > 0;) {
      if (chunks[chunk] > 0) plan.push_back({index, chunk, chunks[chunk]});
    }
  }
  return plan;
}

}  // namespace withy::context_store
