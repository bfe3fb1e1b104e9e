#include "serving/call/call_lifecycle.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "policy/constants.h"
#include "policy/step/start_order.h"

namespace withy::serving {
namespace {

// How often a paused call looks whether its reader has caught up.
constexpr absl::Duration kPausedPoll = absl::Milliseconds(5);

absl::Status CancelledEarly() { return absl::CancelledError("cancelled before its first token"); }

absl::Status Interrupted() { return absl::AbortedError("a call came: retry in a quiet moment"); }

// Tasks of the background thread: each call has two at most.
size_t TaskLimit(const SchedulerOptions& options) {
  return static_cast<size_t>(4 * (options.max_batch + options.queue_limit) + 16);
}

// Tickets of the calls for which `holds`: what follows may end calls.
template <typename Holds>
std::vector<Ticket> TicketsOf(const Calls& calls, Holds holds) {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, call] : calls) {
    if (holds(*call)) tickets.push_back(ticket);
  }
  return tickets;
}

Call* FindCall(const Calls& calls, Ticket ticket) {
  const auto it = calls.find(ticket);
  return it == calls.end() ? nullptr : it->second.get();
}

// Calls that wait and may start now, in their order.
std::vector<Call*> CallsToStart(const Calls& calls, int32_t max_batch, int64_t now_ns) {
  std::vector<policy::WaitingCall> waiting;
  std::vector<Call*> candidates;
  std::vector<std::string_view> busy;
  size_t active = 0;
  for (const auto& [ticket, call] : calls) {
    const std::string_view context = call->request.context_id;
    if (call->phase == CallPhase::kWaiting) {
      waiting.push_back({.turn = call->turn, .context = context});
      candidates.push_back(call.get());
      continue;
    }
    if (!context.empty()) busy.push_back(context);
    if (call->phase != CallPhase::kCommitting) ++active;
  }
  std::vector<Call*> starts;
  if (waiting.empty()) return starts;
  const size_t slots = static_cast<size_t>(max_batch) - active;
  for (const size_t i : policy::ChooseStarts(waiting, busy, slots, now_ns)) {
    starts.push_back(candidates[i]);
  }
  return starts;
}

}  // namespace

CallLifecycle::CallLifecycle(engine::Model& model, const SessionEnv& env, LeaseSource& leases,
                             const SchedulerOptions& options, const StepRunnerOptions& runner,
                             const EngineThreadParts& parts)
    : max_batch_(options.max_batch),
      registry_(parts.registry),
      clock_(parts.clock),
      metrics_(parts.metrics),
      leases_(env, leases, parts.inbox, *this, parts.clock, parts.metrics, TaskLimit(options)),
      runner_(model, runner, calls_, parts.inbox, *this, parts.clock, parts.metrics) {}

void CallLifecycle::Enqueue(std::unique_ptr<Call> call) {
  if (!call->request.rebuild) {
    CancelRebuilds();
  } else if (!calls_.empty()) {
    return call->sink->Failed(Interrupted());
  }
  const Ticket ticket = call->ticket;
  calls_.emplace(ticket, std::move(call));
}

bool CallLifecycle::RunRound() {
  const int64_t now = clock_.SteadyNanos();
  const auto stalled = [&](const Call& call) {
    return call.phase == CallPhase::kRunning && call.paused_since_ns != 0 &&
           now - call.paused_since_ns > kStalledReaderNs;
  };
  for (const Ticket ticket : TicketsOf(calls_, stalled)) {
    Stop(ticket, absl::ResourceExhaustedError(absl::StrCat(
                     "the answer was ended: nothing of it was read for ",
                     kStalledReaderNs / kNanosPerSecond, " s; read the stream as it comes")));
  }
  FollowLoads();
  for (Call* call : CallsToStart(calls_, max_batch_, clock_.SteadyNanos())) Open(*call);
  const bool computed = runner_.Step();
  PublishLoad();
  return computed;
}

absl::Duration CallLifecycle::IdleWait() const {
  const bool paused = std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
    return entry.second->paused_since_ns != 0;
  });
  if (paused) return kPausedPoll;
  const bool loads = std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
    return entry.second->phase == CallPhase::kRunning && entry.second->session->kv().load().waits();
  });
  return loads ? absl::Nanoseconds(policy::kAskForYieldNs) : absl::InfiniteDuration();
}

void CallLifecycle::CancelRebuilds() {
  const auto rebuilds = [](const Call& call) {
    return call.request.rebuild && call.phase != CallPhase::kCommitting;
  };
  for (const Ticket ticket : TicketsOf(calls_, rebuilds))
    Fail(*FindCall(calls_, ticket), Interrupted());
}

void CallLifecycle::Open(Call& call) {
  const int64_t now = clock_.SteadyNanos();
  call.times.queue = now - call.times.arrived_ns;
  call.phase = CallPhase::kOpening;
  call.phase_since_ns = now;
  metrics_.Started(call.request.call_id, call.times.arrived_ns, now);
  const absl::Status opened = leases_.Open(call);
  if (!opened.ok()) Fail(call, opened);
}

void CallLifecycle::OnPrepared(Ticket ticket, std::shared_ptr<Session> session, int64_t opened_ns) {
  Call* call = FindCall(calls_, ticket);
  if (call == nullptr) return;
  const int64_t now = clock_.SteadyNanos();
  const CallUsage& usage = session->usage();
  metrics_.LeaseOpened(call->request.call_id, call->phase_since_ns, opened_ns);
  metrics_.Loaded(call->request.call_id, opened_ns, now, usage);
  call->session = session;
  call->phase = CallPhase::kRunning;
  call->times.load = now - call->phase_since_ns;
  call->phase_since_ns = now;
  if (call->request.rebuild && session->rows().pending() == 0) {
    return Fail(*call, absl::FailedPreconditionError("all of the context's KV is as it should be"));
  }
  call->sink->Accepted({.reused_tokens = usage.reused_tokens,
                        .prefill_tokens = usage.prefilled_tokens,
                        .queue_position = call->queue_position});
  for (LoadEvent& event : std::exchange(call->early_load, {})) OnLoad(ticket, std::move(event));
  if (Call* left = FindCall(calls_, ticket); left != nullptr) leases_.YieldAhead(*left);
}

// Of calls that wait for KV: asks again for chunks to compute meanwhile, and gives up what does not
// come.
void CallLifecycle::FollowLoads() {
  const int64_t now = clock_.SteadyNanos();
  for (const auto& [ticket, call] : calls_) {
    if (call->phase != CallPhase::kRunning) continue;
    policy::KvLoad& load = call->session->kv().load();
    if (call->session->rows().held_by_load()) load.BeginWait(now);
    switch (load.NextStep(now)) {
      case policy::KvLoad::Next::kNothing:
        break;
      case policy::KvLoad::Next::kAsk:
        leases_.YieldAhead(*call);
        break;
      case policy::KvLoad::Next::kGiveUp:
        load.EndWait();
        GiveUp(*call, load.Find(policy::KvLoad::Chunk::kReading));
    }
  }
}

// What waits for KV goes on by itself in the round that follows.
void CallLifecycle::OnLoad(Ticket ticket, LoadEvent event) {
  Call* call = FindCall(calls_, ticket);
  if (call != nullptr && call->phase == CallPhase::kOpening) {
    call->early_load.push_back(std::move(event));
  }
  if (call == nullptr || call->phase != CallPhase::kRunning) return;
  const bool yields = event.what.kind == policy::KvLoadEvent::Kind::kYielded;
  // A refusal is taken at once: the step may stand still for layers that are told behind it.
  if (!event.slots.empty() && runner_.IsUnderWay(*call)) {
    return runner_.Defer(
        [this, ticket, event = std::move(event)]() mutable { OnLoad(ticket, std::move(event)); });
  }
  const absl::Status taken = call->session->rows().OnLoad(event, clock_.SteadyNanos());
  if (!taken.ok()) return Fail(*call, taken);
  const uint32_t lost = call->session->kv().load().Find(policy::KvLoad::Chunk::kLost);
  if (lost != policy::KvLoad::kNone) {
    GiveUp(*call, lost);
  } else if (!event.slots.empty()) {
    leases_.ClaimAhead(*call);
  } else if (!yields) {
    leases_.YieldAhead(*call);
  }
}

void CallLifecycle::GiveUp(Call& call, uint32_t chunk) {
  metrics_.Faulted();
  runner_.AbandonStepOf(call);
  call.session->rows().GiveUp(chunk);
  leases_.ClaimAhead(call);
}

void CallLifecycle::OnClaimed(Ticket ticket, std::vector<ChunkSlot> chunks, std::string refused) {
  Call* call = FindCall(calls_, ticket);
  if (call == nullptr || call->phase != CallPhase::kRunning) return;
  if (runner_.IsUnderWay(*call)) {
    return runner_.Defer([this, ticket, chunks = std::move(chunks), refused]() mutable {
      OnClaimed(ticket, std::move(chunks), refused);
    });
  }
  if (refused.empty()) {
    const absl::Status added = call->session->kv().AddChunks(chunks);
    return added.ok() ? leases_.ClaimAhead(*call) : Fail(*call, added);
  }
  call->session->kv().EndClaim();
  // It asks again when it has used what it has.
  if (call->session->rows().ready() > 0 && !call->request.rebuild) return;
  if (call->session->answer().tokens() == 0) {
    return Fail(*call, absl::ResourceExhaustedError(
                           absl::StrCat("the KV arena is full (", refused,
                                        "): retry later, or raise store.arena_bytes")));
  }
  call->sink->Delta(call->session->Finish(engine::FinishReason::kKvFull));
  call->broken_off = true;  // a retry may find more room
  Commit(*call);
}

// A call that has ended is committed, another one claims the blocks of its next rows.
void CallLifecycle::OnComputed(Call& call) {
  const bool rebuilt = call.request.rebuild && call.session->rows().pending() == 0;
  if (!call.session->answer().finished() && !rebuilt) return leases_.ClaimAhead(call);
  call.unanswered = call.unanswered || rebuilt;
  Commit(call);
}

void CallLifecycle::Stop(Ticket ticket, const absl::Status& why) {
  Call* call = FindCall(calls_, ticket);
  if (call == nullptr || call->phase == CallPhase::kCommitting) return;
  if (runner_.SharesStepUnderWay(*call)) {  // its neighbours' rows are not lost
    return runner_.Defer([this, ticket, why] { Stop(ticket, why); });
  }
  const bool running = call->phase == CallPhase::kRunning;
  if (running && call->session->answer().tokens() > 0) {
    call->sink->Delta(call->session->Finish(engine::FinishReason::kCancelled));
    call->broken_off = !why.ok();
    call->ended = why;
    if (why.ok() || !call->request.context_id.empty()) return Commit(*call);
  }
  call->ended = why.ok() ? CancelledEarly() : why;
  if (running && call->session->worth_keeping()) {
    call->unanswered = true;
    return Commit(*call);
  }
  Fail(*call, call->ended);
}

bool CallLifecycle::CancelCall(uint64_t call_id) {
  const std::vector<Ticket> found = TicketsOf(calls_, [&](const Call& call) {
    return call.request.call_id == call_id && !call.request.rebuild;
  });
  if (!found.empty()) Stop(found.back(), absl::OkStatus());
  return !found.empty();
}

void CallLifecycle::StopAll(const absl::Status& why) {
  for (const Ticket ticket : TicketsOf(calls_, [](const Call&) { return true; })) {
    Stop(ticket, why);
  }
}

void CallLifecycle::FailLeased(const absl::Status& status) {
  const auto leased = [](const Call& call) { return call.phase != CallPhase::kWaiting; };
  for (const Ticket ticket : TicketsOf(calls_, leased)) OnBroken(ticket, status);
}

void CallLifecycle::FailRemaining(const absl::Status& status) {
  for (const auto& [ticket, call] : calls_) call->sink->Failed(status);
}

void CallLifecycle::Commit(Call& call) {
  runner_.AbandonStepOf(call);
  const int64_t now = clock_.SteadyNanos();
  call.times.decode = call.times.first_token_ns == 0 ? 0 : now - call.times.first_token_ns;
  call.phase = CallPhase::kCommitting;
  call.phase_since_ns = now;
  call.paused_since_ns = 0;
  runner_.speculator().Remember(call);
  const absl::Status begun = leases_.Commit(call);
  if (!begun.ok()) Fail(call, begun);
}

void CallLifecycle::OnCommitted(Ticket ticket) {
  Call* call = FindCall(calls_, ticket);
  if (call == nullptr) return;
  const int64_t now = clock_.SteadyNanos();
  metrics_.Committed(call->request.call_id, call->phase_since_ns, now);
  if (!call->ended.ok()) return Fail(*call, call->ended);
  call->times.commit = now - call->phase_since_ns;
  CallOutcome outcome = call->session->Outcome();
  outcome.times = call->times;
  registry_.EndName(call->request, /*stored=*/!call->broken_off);
  if (call->request.rebuild) {
    metrics_.Upgraded();
  } else {
    metrics_.Finished(call->request.call_id, outcome);
  }
  call->sink->Finished(outcome);
  Erase(ticket);
}

void CallLifecycle::OnBroken(Ticket ticket, absl::Status status) {
  Call* call = FindCall(calls_, ticket);
  if (call != nullptr) Fail(*call, status);
}

// Destroys the call. Its lease and its name go first: its caller may try again as soon as it is
// told. The background task that prepared it may still hold the lease for a moment, so the lease is
// aborted and not only let go of.
void CallLifecycle::Fail(Call& call, const absl::Status& status) {
  runner_.AbandonStepOf(call);
  if (!call.request.rebuild) metrics_.Failed();
  if (call.phase == CallPhase::kRunning) call.lease->Abort();
  call.lease = nullptr;
  registry_.EndName(call.request, /*stored=*/false);
  call.sink->Failed(status);
  Erase(call.ticket);
}

void CallLifecycle::Erase(Ticket ticket) {
  const bool rebuild = FindCall(calls_, ticket)->request.rebuild;
  runner_.speculator().Forget(*FindCall(calls_, ticket));
  calls_.erase(ticket);
  PublishLoad();
  if (!rebuild) registry_.Release();
}

void CallLifecycle::PublishLoad() {
  size_t queued = 0, running = 0;
  int64_t pending_tokens = 0;
  for (const auto& [ticket, call] : calls_) {
    if (call->request.rebuild) continue;
    ++(call->phase == CallPhase::kWaiting ? queued : running);
    if (call->session == nullptr) {
      pending_tokens += EstimatedTokens(call->request.answer);
    } else if (!call->session->decoding()) {
      pending_tokens += call->session->rows().pending();
    }
  }
  metrics_.Load(running, queued);
  registry_.SetLoad(running, queued, pending_tokens);
}

}  // namespace withy::serving
