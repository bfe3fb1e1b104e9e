#include "policy/kv/kv_admission.h"

#include <algorithm>

namespace withy::policy {

// If the calls can finish in some order, they can in that of what they may still need: a call that
// needs less can go first wherever one that needs more can.
bool AllCanFinish(uint64_t places, std::vector<KvHolder> calls) {
  std::sort(calls.begin(), calls.end(),
            [](const KvHolder& a, const KvHolder& b) { return a.more < b.more; });
  for (const KvHolder& call : calls) {
    if (call.more > places) return false;
    places += call.freed;
  }
  return true;
}

int32_t ChunksAhead(int32_t arena, int32_t window, int32_t leases) {
  return std::clamp((arena - window) / (2 * leases), 0, kMostAhead);
}

}  // namespace withy::policy
