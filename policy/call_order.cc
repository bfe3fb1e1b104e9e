#include "policy/call_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace withy::policy {

bool ComesBefore(const CallOrder& a, const CallOrder& b, int64_t now_ns) {
  const auto key = [now_ns](const CallOrder& order) {
    const bool patient = now_ns - order.arrived_ns < kPromptPatienceNs;
    const int64_t deadline = !patient                 ? std::numeric_limits<int64_t>::min()
                             : order.deadline_ns == 0 ? std::numeric_limits<int64_t>::max()
                                                      : order.deadline_ns;
    const int32_t priority = patient ? -order.priority : 0;
    return std::tuple(deadline, priority, order.arrived_ns, order.sequence);
  };
  return key(a) < key(b);
}

std::vector<size_t> ChooseStarts(std::span<const WaitingCall> waiting,
                                 std::span<const std::string_view> busy_contexts, size_t free_slots,
                                 int64_t now_ns) {
  std::vector<size_t> order(waiting.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return ComesBefore(waiting[a].order, waiting[b].order, now_ns);
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
