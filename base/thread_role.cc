#include "base/thread_role.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace withy {
namespace {

constexpr int kCarrierNice = -10;
constexpr uint64_t kShortestSliceNs = 100'000;
constexpr uint64_t kLongSliceNs = 20'000'000;

// Argument of sched_setattr(2). The kernel's own header conflicts with <sched.h>.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

}  // namespace

void SetThreadRole(ThreadRole role) {
  constexpr id_t kThisThread = 0;  // on Linux each thread has its own nice value
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  const bool carries = role == ThreadRole::kCarries;
  errno = 0;
  const int before = getpriority(PRIO_PROCESS, kThisThread);
  if (before == -1 && errno != 0) return;
  const int wanted = carries ? std::min(before, kCarrierNice) : std::max(before, 0);
  const int nice = setpriority(PRIO_PROCESS, kThisThread, wanted) == 0 ? wanted : before;
  SchedAttr attributes;
  attributes.policy = carries ? SCHED_OTHER : SCHED_BATCH;
  attributes.nice = nice;
  attributes.runtime_ns = carries ? kShortestSliceNs : kLongSliceNs;
  if (syscall(SYS_sched_setattr, 0, &attributes, 0) == 0 || carries) return;
  const sched_param none{};  // a kernel without per-thread time slices may refuse the whole call
  sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace withy
