#include "policy/step/start_order.h"

#include <algorithm>
#include <numeric>

namespace withy::policy {

std::vector<size_t> ChooseStarts(std::span<const WaitingCall> waiting,
                                 std::span<const std::string_view> busy_contexts, size_t free_slots,
                                 int64_t now_ns) {
  std::vector<size_t> order(waiting.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return GoesBefore(waiting[a].turn, waiting[b].turn, now_ns);
  });
  std::vector<std::string_view> busy(busy_contexts.begin(), busy_contexts.end());
  std::vector<size_t> starts;
  for (const size_t i : order) {
    if (starts.size() >= free_slots) break;
    const std::string_view context = waiting[i].context;
    if (!context.empty()) {
      if (std::find(busy.begin(), busy.end(), context) != busy.end()) continue;
      busy.push_back(context);
    }
    starts.push_back(i);
  }
  return starts;
}

}  // namespace withy::policy
