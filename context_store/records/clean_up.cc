#include "context_store/records/clean_up.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

namespace withy::context_store {

CleanUp::CleanUp(std::function<absl::Status()> work, Pauses pauses)
    : work_(std::move(work)), pauses_(pauses), thread_([this] { Run(); }) {}

CleanUp::~CleanUp() {
  {
    const absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void CleanUp::Begin() {
  const absl::MutexLock lock(&mutex_);
  left_ = true;
}

void CleanUp::Run() {
  const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return left_ || stop_; };
  absl::Duration pause = pauses_.first;
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&woken));
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), pause)) return;
      left_ = false;
    }
    if (const absl::Status status = work_(); status.ok()) {
      pause = pauses_.first;
    } else {
      pause = std::min(2 * pause, pauses_.longest);
      Begin();
    }
  }
}

}  // namespace withy::context_store
