// What any thread may ask of the scheduler: it leaves word for the engine thread, and waits at
// most. Neighbours: scheduler.cc is the life of calls, scheduler_step.cc what they compute.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/ids.h"
#include "base/status.h"
#include "model_worker/scheduler_call.h"

namespace withy::model_worker {
namespace {

// Work of the engine thread that takes longer than this hangs.
constexpr int64_t kHangNs = 20 * kNanosPerSecond;

}  // namespace

absl::StatusOr<Scheduler::Ticket> Scheduler::Submit(CallRequest request,
                                                    std::shared_ptr<CallSink> sink) {
  auto call = std::make_unique<Call>();
  call->times.arrived_ns = clock_.SteadyNanos();
  call->order = {.deadline_ns = request.deadline_steady_ns,
                 .priority = request.priority,
                 .arrived_ns = call->times.arrived_ns,
                 .sequence = 0};
  call->pacer = policy::Pacer(request.pace, request.answer.max_tokens);
  call->request = std::move(request);
  call->sink = std::move(sink);
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  const size_t limit = static_cast<size_t>(options_.max_batch + options_.queue_limit);
  if (admitted_ >= limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("model_worker: ", options_.max_batch, " calls run and ", options_.queue_limit,
                     " wait (model.queue_limit); this would be number ", options_.queue_limit + 1));
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
  call->order.sequence = ticket;
  posted_.push_back([this, call = std::move(call)]() mutable { Enqueue(std::move(call)); });
  stop_step_ = true;
  return ticket;
}

void Scheduler::SubmitRebuild(const std::string& app_id, const std::string& context_id,
                              std::shared_ptr<CallSink> sink) {
  auto call = std::make_unique<Call>();
  call->times.arrived_ns = clock_.SteadyNanos();
  call->order.arrived_ns = call->times.arrived_ns;
  call->request.call_id = RandomId64();
  call->request.app_id = app_id;
  call->request.context_id = context_id;
  call->request.rebuild = true;
  call->sink = std::move(sink);
  {
    absl::MutexLock lock(&mutex_);
    if (!draining_) {
      call->ticket = next_ticket_++;
      posted_.push_back([this, call = std::move(call)]() mutable { Enqueue(std::move(call)); });
      return;
    }
  }
  call->sink->Failed(Draining());
}

bool Scheduler::AwaitQuiet(absl::Duration quiet, uint64_t* calls_seen) {
  absl::MutexLock lock(&mutex_);
  uint64_t seen = *calls_seen;
  const auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || (admitted_ == 0 && submitted_ != seen);
  };
  const auto stirred = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || submitted_ != seen;
  };
  do {
    mutex_.Await(absl::Condition(&gone));
    seen = submitted_;
    if (!mutex_.AwaitWithTimeout(absl::Condition(&stirred), quiet)) {
      *calls_seen = seen;
      return true;
    }
  } while (!draining_);
  return false;
}

void Scheduler::Cancel(Ticket ticket) { BreakOff(ticket, absl::OkStatus()); }

void Scheduler::BreakOff(Ticket ticket, absl::Status why) {
  Post([this, ticket, why = std::move(why)] { StopNow(ticket, why); });
}

void Scheduler::CancelCall(uint64_t call_id, std::function<void(bool found)> done) {
  Post([this, call_id, done = std::move(done)] {
    std::optional<Ticket> ticket;
    for (const auto& [number, call] : calls_) {
      if (call->request.call_id == call_id && !call->request.rebuild) ticket = number;
    }
    if (ticket.has_value()) StopNow(*ticket, absl::OkStatus());
    done(ticket.has_value());
  });
}

void Scheduler::Post(Task task) {
  absl::MutexLock lock(&mutex_);
  PostLocked(std::move(task));
}

void Scheduler::PostLocked(Task task) {
  posted_.push_back(std::move(task));
  stop_step_ = true;
}

void Scheduler::FailLeases(const absl::Status& status) {
  absl::Notification failed;
  Post([&] {
    std::vector<Ticket> leased;
    for (const auto& [ticket, call] : calls_) {
      if (call->phase != Phase::kWaiting) leased.push_back(ticket);
    }
    for (const Ticket ticket : leased) OnBroken(ticket, status);
    failed.Notify();
  });
  failed.WaitForNotification();
  absl::Notification idle;  // what the office had begun with those calls is over, too
  if (office_.Post([&idle] { idle.Notify(); })) idle.WaitForNotification();
}

void Scheduler::Drain(absl::Duration grace) {
  const auto empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return admitted_ == 0; };
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    PostLocked([this] { CancelRebuilds(); });
    if (!mutex_.AwaitWithTimeout(absl::Condition(&empty), grace)) {
      PostLocked([this] {
        std::vector<Ticket> tickets;
        for (const auto& [ticket, call] : calls_) tickets.push_back(ticket);
        for (const Ticket ticket : tickets) StopNow(ticket, Draining());
      });
      mutex_.AwaitWithTimeout(absl::Condition(&empty), options_.commit_grace);
    }
  }
  // What is left waits for a store that hangs; its callers' streams would keep the server.
  FailLeases(Draining());
}

SchedulerLoad Scheduler::load() const {
  absl::MutexLock lock(&mutex_);
  SchedulerLoad load = load_;
  load.queue_limit = static_cast<size_t>(options_.queue_limit);
  return load;
}

bool Scheduler::MakesProgress() const { return PieceNanos() < kHangNs; }

int64_t Scheduler::PieceNanos() const {
  const int64_t since = busy_since_ns_.load();
  return since == 0 ? 0 : clock_.SteadyNanos() - since;
}

}  // namespace withy::model_worker
