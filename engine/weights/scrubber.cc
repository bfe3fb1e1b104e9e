#include "engine/weights/scrubber.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "engine/weights/packed_check.h"

namespace withy::engine {
namespace {

// How often a file is looked at, and how often it is asked whether calls run.
constexpr absl::Duration kLook = absl::Seconds(1);
constexpr absl::Duration kBusyPoll = absl::Milliseconds(50);
// After this a check can be remembered (HasSettled).
constexpr absl::Duration kSettle = absl::Seconds(70);

// Without memory or descriptors.
bool IsTransient(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

// When the memo was written: at the end of the last check.
absl::Time LastChecked(const std::string& memo_path) {
  struct stat info {};
  return stat(memo_path.c_str(), &info) == 0 ? absl::TimeFromTimespec(info.st_mtim)
                                             : absl::InfinitePast();
}

}  // namespace

Scrubber::Scrubber(ScrubOptions options) : options_(std::move(options)) {
  const absl::StatusOr<FileStamp> stamp = StampOf(options_.path);
  if (stamp.ok()) whole_ = *stamp;
  next_ = IsRememberedWhole(options_.memo_path, whole_)
              ? LastChecked(options_.memo_path) + options_.interval
              : absl::Now() + std::min(kSettle, options_.interval);
  thread_ = std::thread([this] { Run(); });
}

Scrubber::~Scrubber() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

// Of a file that is gone, or has another in its place, what is mapped stays as it is.
bool Scrubber::IsUnchanged() {
  const absl::StatusOr<FileStamp> stamp = StampOf(options_.path);
  if (!stamp.ok()) return absl::IsNotFound(stamp.status()) || IsTransient(stamp.status());
  const absl::MutexLock lock(&mutex_);
  return *stamp == whole_ || stamp->inode != whole_.inode || stamp->device != whole_.device;
}

bool Scrubber::IsUrgent() { return options_.suspect() || !IsUnchanged(); }

void Scrubber::Run() {
  SetThreadRole(ThreadRole::kComputes);
  constexpr int kLowest = 19;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowest);
  do {
    if ((IsUrgent() || absl::Now() >= next_) && !Check()) return;
  } while (Pause(kLook));
}

// False: the thread ends.
bool Scrubber::Check() {
  const absl::Status status = CheckAll();
  if (absl::IsCancelled(status)) return false;
  next_ = absl::Now() + options_.interval;
  // Removed, replaced by another version, or not to be opened now: it is looked at again next time.
  if (status.ok() || absl::IsNotFound(status) || absl::IsFailedPrecondition(status) ||
      IsTransient(status)) {
    return true;
  }
  if (!options_.on_damage(status)) return false;
  options_.on_whole();
  const absl::StatusOr<FileStamp> stamp = StampOf(options_.path);
  const absl::MutexLock lock(&mutex_);
  if (stamp.ok()) whole_ = *stamp;
  return true;
}

absl::Status Scrubber::CheckAll() {
  if (!AwaitIdle()) return absl::CancelledError();
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedCheck> check,
                         PackedCheck::Begin(options_.path));
  while (true) {
    if (!AwaitIdle()) return absl::CancelledError();
    WITHY_ASSIGN_OR_RETURN(const uint64_t bytes, check->Next());
    if (bytes == 0) break;
    options_.on_bytes(bytes);
    const double seconds =
        static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second);
    if (!Pause(IsUrgent() ? absl::ZeroDuration() : absl::Seconds(seconds))) {
      return absl::CancelledError();
    }
  }
  options_.on_whole();
  RememberWhole(options_.memo_path, check->stamp(), Clock::Real().UnixNanos());
  const absl::MutexLock lock(&mutex_);
  whole_ = check->stamp();
  return absl::OkStatus();
}

// False: the thread is to end.
bool Scrubber::AwaitIdle() {
  while (!IsUrgent() && options_.busy()) {
    if (!Pause(kBusyPoll)) return false;
  }
  return true;
}

bool Scrubber::Pause(absl::Duration time) {
  const absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stopping_), time);
}

}  // namespace withy::engine
