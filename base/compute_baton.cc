#include "base/compute_baton.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace withy {
namespace {

constexpr size_t kPageBytes = 4096;

// Until `word` is not `value`, a wake or the timeout; may return early.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value, absl::Duration timeout) {
  const timespec relative = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &relative, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
          0);
}

}  // namespace

absl::StatusOr<ComputeBaton> ComputeBaton::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoError("open " + path);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return ErrnoError("stat " + path);
  const auto refused = [&path](std::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", ToAbsl(why), "; remove it"));
  };
  if (!S_ISREG(status.st_mode)) return refused("not a file");
  if (status.st_uid != geteuid()) return refused("it belongs to another user");
  if (status.st_size < static_cast<off_t>(kPageBytes) && ftruncate(fd.get(), kPageBytes) != 0) {
    return ErrnoError("enlarge " + path);
  }
  WITHY_ASSIGN_OR_RETURN(SharedMemory memory,
                         SharedMemory::Map(fd.get(), kPageBytes, SharedMemory::Access::kReadWrite));
  ComputeBaton baton(std::move(memory));
  uint32_t magic = 0;  // of a new file, which whoever comes first makes the baton's
  if (!baton.page().magic.compare_exchange_strong(magic, kMagic) && magic != kMagic) {
    return refused("not a compute baton");
  }
  return baton;
}

uint32_t ComputeBaton::BeginRound() {
  const uint32_t state = page().state.fetch_add(kRound) + kRound;
  FutexWake(page().state);
  return state / kRound;
}

void ComputeBaton::Lend() {
  page().wanted = false;
  page().state |= kLent;
  FutexWake(page().state);
}

void ComputeBaton::TakeBack() {
  if ((page().state & kLent) == 0) return;
  page().wanted = true;
  page().state &= ~kLent;
  const absl::Time end = absl::Now() + kPatience;
  for (uint32_t state = page().state; (state & kBorrowed) != 0; state = page().state) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) {
      page().state &= ~kBorrowed;
      return;
    }
    FutexWait(page().state, state, left);
  }
}

ComputeBaton::Turn ComputeBaton::Borrow(uint32_t round, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    uint32_t state = page().state;
    if (state / kRound != round) return Turn::kOver;
    if ((state & kLent) != 0) {
      if (page().state.compare_exchange_weak(state, state | kBorrowed)) return Turn::kMine;
      continue;
    }
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return Turn::kLater;
    FutexWait(page().state, state, left);
  }
}

void ComputeBaton::Return() {
  page().state &= ~kBorrowed;
  FutexWake(page().state);
}

}  // namespace withy
