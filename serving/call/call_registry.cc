#include "serving/call/call_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"

namespace withy::serving {

absl::StatusOr<Ticket> CallRegistry::Admit(CallRequest request, std::shared_ptr<CallSink> sink) {
  auto call = std::make_unique<Call>();
  call->times.arrived_ns = clock_.SteadyNanos();
  call->turn = request.turn;
  call->turn.arrived_ns = call->times.arrived_ns;
  call->pacer = policy::Pacer(request.targets, request.answer.max_tokens, request.pace_options);
  call->request = std::move(request);
  call->sink = std::move(sink);
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  if (admitted_ >= static_cast<size_t>(max_batch_ + queue_limit_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("model_worker: ", max_batch_, " calls run and ", queue_limit_,
                     " wait (model.queue_limit); this would be number ", queue_limit_ + 1));
  }
  WITHY_RETURN_IF_ERROR(
      names_.Begin(call->request.app_id, call->request.request_id, call->times.arrived_ns));
  call->queue_position = static_cast<int32_t>(admitted_);
  ++admitted_;
  ++submitted_;
  ++load_.queued;
  load_.pending_prefill_tokens += EstimatedTokens(call->request.answer);
  const Ticket ticket = next_ticket_++;
  call->ticket = ticket;
  call->turn.id = ticket;
  enqueue_(std::move(call));
  return ticket;
}

absl::Status CallRegistry::AdmitRebuild(const std::string& app_id, const std::string& context_id,
                                        std::shared_ptr<CallSink> sink) {
  auto call = std::make_unique<Call>();
  call->times.arrived_ns = clock_.SteadyNanos();
  call->turn.arrived_ns = call->times.arrived_ns;
  call->request.call_id = RandomId64();
  call->request.app_id = app_id;
  call->request.context_id = context_id;
  call->request.rebuild = true;
  call->sink = std::move(sink);
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  call->ticket = next_ticket_++;
  enqueue_(std::move(call));
  return absl::OkStatus();
}

void CallRegistry::EndName(const CallRequest& request, bool stored) {
  absl::MutexLock lock(&mutex_);
  names_.End(request.app_id, request.request_id, stored, clock_.SteadyNanos());
}

void CallRegistry::Release() {
  absl::MutexLock lock(&mutex_);
  --admitted_;
}

bool CallRegistry::AwaitQuiet(absl::Duration quiet, uint64_t* calls_seen) {
  absl::MutexLock lock(&mutex_);
  uint64_t seen = *calls_seen;
  const auto came_and_went = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || (admitted_ == 0 && submitted_ != seen);
  };
  const auto another_came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || submitted_ != seen;
  };
  do {
    mutex_.Await(absl::Condition(&came_and_went));
    seen = submitted_;
    if (!mutex_.AwaitWithTimeout(absl::Condition(&another_came), quiet)) {
      *calls_seen = seen;
      return true;
    }
  } while (!draining_);
  return false;
}

void CallRegistry::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool CallRegistry::AwaitEmpty(absl::Duration limit) {
  const auto empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return admitted_ == 0; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&empty), limit);
}

void CallRegistry::SetLoad(size_t running, size_t queued, int64_t pending_prefill_tokens) {
  absl::MutexLock lock(&mutex_);
  load_.running = running;
  load_.queued = queued;
  load_.pending_prefill_tokens = pending_prefill_tokens;
}

SchedulerLoad CallRegistry::load() const {
  absl::MutexLock lock(&mutex_);
  SchedulerLoad load = load_;
  load.queue_limit = static_cast<size_t>(queue_limit_);
  return load;
}

}  // namespace withy::serving
