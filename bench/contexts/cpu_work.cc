#include "bench/contexts/cpu_work.h"

#include <time.h>

#include <cmath>

#include "base/clock.h"
#include "base/thread_role.h"

namespace withy::bench {
namespace {

constexpr int64_t kSliceNs = 100'000;

int64_t ThreadCpuNanos() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kNanosPerSecond + now.tv_nsec;
}

}  // namespace

CpuWork::CpuWork(int threads) : threads_(threads) {
  for (int i = 0; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
}

CpuWork::~CpuWork() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& helper : helpers_) helper.join();
}

void CpuWork::Run(double ms) {
  slices_left_ = std::llround(ms * kNanosPerMilli * threads_ / kSliceNs);
  {
    absl::MutexLock lock(&mutex_);
    ++runs_;
    helping_ = threads_;
  }
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return helping_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done));
}

void CpuWork::Help() {
  SetThreadRole(ThreadRole::kComputes);
  for (uint64_t seen = 0;;) {
    {
      const auto more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || runs_ != seen;
      };
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&more));
      if (stop_) return;
      seen = runs_;
    }
    UseSlices();
    absl::MutexLock lock(&mutex_);
    --helping_;
  }
}

void CpuWork::UseSlices() {
  while (slices_left_.fetch_sub(1) > 0) {
    const int64_t begin = ThreadCpuNanos();
    while (ThreadCpuNanos() - begin < kSliceNs) continue;
  }
}

}  // namespace withy::bench
