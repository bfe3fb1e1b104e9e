#include "orchestrator/board/idle_task.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/ids.h"
#include "policy/constants.h"

namespace withy::orchestrator {
namespace {

constexpr absl::Duration kLongest = absl::Seconds(30);  // of one request

}  // namespace

IdleTask::IdleTask(Backends& backends, const Clock& clock, std::function<int64_t()> work)
    : backends_(backends),
      clock_(clock),
      work_(std::move(work)),
      quiet_since_ns_(clock.SteadyNanos()),
      thread_([this] { Run(); }) {}

IdleTask::~IdleTask() {
  std::shared_ptr<CallControl> asking;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    asking = asking_;
  }
  if (asking != nullptr) asking->Cancel();
  thread_.join();
}

void IdleTask::CallStarts() {
  std::shared_ptr<CallControl> asking;
  {
    absl::MutexLock lock(&mutex_);
    ++calls_;
    asking = asking_;
  }
  if (asking != nullptr) asking->Cancel();
}

void IdleTask::CallEnds() {
  absl::MutexLock lock(&mutex_);
  if (--calls_ == 0) quiet_since_ns_ = clock_.SteadyNanos();
}

void IdleTask::Schedule(int64_t due_ns) {
  absl::MutexLock lock(&mutex_);
  due_ns_ = std::min(due_ns_, due_ns);
}

int64_t IdleTask::QuietFromNs() const { return quiet_since_ns_ + policy::kQuietNs; }

void IdleTask::Run() {
  const auto scheduled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (calls_ == 0 && due_ns_ != kNothing);
  };
  int64_t due_ns = 0;
  const auto disturbed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || calls_ > 0 || due_ns_ < due_ns;
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&scheduled));
      due_ns = due_ns_;
      const int64_t begin_ns = std::max(due_ns, QuietFromNs());
      const absl::Duration wait = absl::Nanoseconds(begin_ns - clock_.SteadyNanos());
      if (wait > absl::ZeroDuration()) mutex_.AwaitWithTimeout(absl::Condition(&disturbed), wait);
      if (stopping_) return;
      if (calls_ > 0 || clock_.SteadyNanos() < begin_ns) continue;
      due_ns_ = kNothing;
    }
    Schedule(work_());
  }
}

absl::Status IdleTask::Ask(policy::Lane lane, v1::RunRequest request,
                           const std::function<bool(v1::RunResponse&)>& on_event) {
  request.set_call_id(RandomId64());
  return Do([&](CallControl& control) { return backends_.Run(lane, request, control, on_event); });
}

absl::Status IdleTask::Do(const std::function<absl::Status(CallControl& control)>& ask) {
  const auto control = std::make_shared<CallControl>(absl::Now() + kLongest);
  {
    absl::MutexLock lock(&mutex_);
    if (calls_ > 0 || stopping_) return absl::CancelledError("a call has come");
    asking_ = control;
  }
  const absl::Status status = ask(*control);
  {
    absl::MutexLock lock(&mutex_);
    asking_ = nullptr;
  }
  if (control->cancelled()) return absl::CancelledError("a call has come");
  return absl::IsCancelled(status) ? absl::UnavailableError(status.message()) : status;
}

}  // namespace withy::orchestrator
