#include "context_store/eviction.h"

#include <algorithm>
#include <numeric>

namespace withy::context_store {

std::vector<Eviction> PlanEviction(std::span<const IdleContext> contexts, uint64_t chunks) {
  uint64_t available = 0;
  for (const IdleContext& context : contexts) available += context.chunks;
  if (available < chunks) return {};
  std::vector<uint32_t> order(contexts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return contexts[a].last_used < contexts[b].last_used; });
  std::vector<Eviction> plan;
  for (uint32_t index : order) {
    if (chunks == 0) break;
    const uint32_t drop = static_cast<uint32_t>(std::min<uint64_t>(chunks, contexts[index].chunks));
    if (drop > 0) plan.push_back({index, contexts[index].chunks - drop});
    chunks -= drop;
  }
  return plan;
}

}  // namespace withy::context_store
