#include "model_worker/scheduler.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "model_worker/scheduler_call.h"

namespace withy::model_worker {
namespace {

// A reader that takes nothing for so long has gone.
constexpr int64_t kStalledReaderNs = 30 * kNanosPerSecond;
// How often a paused call looks whether its reader has caught up.
constexpr absl::Duration kPausedPoll = absl::Milliseconds(5);

// A token reads a level's weights once, a row of many costs its operations; a model that does not
// say how many takes its per cent.
std::vector<policy::LevelPace> GuessPaces(const engine::ModelInfo& info,
                                          const engine::StepCost& cost) {
  const engine::LevelInfo& full = info.levels.back();
  const auto share = [](auto part, auto whole, int32_t percent) {
    return part > 0 ? static_cast<double>(part) / static_cast<double>(whole) : percent / 100.0;
  };
  std::vector<policy::LevelPace> paces;
  for (const engine::LevelInfo& level : info.levels) {
    const double flops = share(level.flops_per_token, full.flops_per_token, level.percent);
    const double bytes = share(level.weight_bytes, full.weight_bytes, level.percent);
    // Where nothing was measured, the levels' times still compare.
    const engine::DepthCost depth =
        engine::DepthCostOf(cost, info.levels.front().percent, level.percent);
    paces.push_back({.row_ms = std::max(cost.prefill_us_per_token, 1.0) * flops / 1e3,
                     .token_ms = std::max(cost.decode_us, 1.0) * bytes / 1e3,
                     .row_depth_ms = depth.prefill_us / 1e3,
                     .token_depth_ms = depth.decode_us / 1e3});
  }
  return paces;
}

// Of a stateless call whose prompt is counted: what its session will claim first.
int32_t ChunksToBegin(const CallRequest& request) {
  if (!request.context_id.empty() || request.prompt_tokens <= 0) return 0;
  constexpr int32_t kChunk = engine::kChunkTokens;
  const int32_t tokens = std::min(request.prompt_tokens + kChunk / 2, kPromptAhead);
  return (tokens + kChunk - 1) / kChunk;
}

absl::Status CancelledEarly() { return absl::CancelledError("cancelled before its first token"); }

absl::Status Interrupted() { return absl::AbortedError("a call came: retry in a quiet moment"); }

}  // namespace

struct Scheduler::Link {
  absl::Mutex mutex;
  Scheduler* scheduler ABSL_GUARDED_BY(mutex) = nullptr;
};

// Brings a lease's events to the scheduler, unless it is gone. Preparing begins at once, without
// waiting for the step that is under way.
class Scheduler::Events final : public LeaseEvents {
 public:
  Events(std::shared_ptr<Link> link, const Call& call)
      : link_(std::move(link)), ticket_(call.ticket), over_(call.over), request_(call.request) {}

  void OnOpened(std::shared_ptr<Lease> lease, OpenedLease opened) override {
    With([&](Scheduler& s) {
      s.Prepare(ticket_, over_, std::move(request_), std::move(lease), std::move(opened));
    });
  }
  void OnClaimed(std::vector<ChunkBlocks> chunks, std::string refused) override {
    With([&](Scheduler& s) {
      s.Post([&s, ticket = ticket_, chunks = std::move(chunks),
              refused = std::move(refused)]() mutable {
        s.OnClaimed(ticket, std::move(chunks), refused);
      });
    });
  }
  void OnCommitted() override {
    With([&](Scheduler& s) { s.Post([&s, ticket = ticket_] { s.OnCommitted(ticket); }); });
  }
  void OnBroken(absl::Status status) override {
    With([&](Scheduler& s) {
      s.Post([&s, ticket = ticket_, status = std::move(status)] { s.OnBroken(ticket, status); });
    });
  }

 private:
  template <typename Use>
  void With(Use use) {
    absl::MutexLock lock(&link_->mutex);
    if (link_->scheduler != nullptr) use(*link_->scheduler);
  }
  const std::shared_ptr<Link> link_;
  const Ticket ticket_;
  const std::shared_ptr<const std::atomic<bool>> over_;  // Call::over
  CallRequest request_;
};

Scheduler::Scheduler(engine::Model& model, const SessionEnv& env, LeaseSource& leases,
                     const engine::StepCost& cost, const SchedulerOptions& options, Clock& clock,
                     telemetry::Recorder& recorder)
    : model_(model),
      env_(env),
      leases_(leases),
      options_(options),
      clock_(clock),
      metrics_(recorder),
      vocab_(static_cast<size_t>(model.info().vocab_size)),
      logits_(static_cast<size_t>(options.max_batch) * vocab_),
      between_logits_(logits_.size()),
      paces_(options.paces.empty() ? GuessPaces(model.info(), cost) : options.paces),
      learner_({.us_per_row = cost.prefill_us_per_token,
                .full_row_ms = paces_.back().row_ms,
                .piece_ms = options.prefill_piece_ms,
                .max_rows = options.max_piece_rows}),
      link_(std::make_shared<Link>()),
      office_(/*limit=*/static_cast<size_t>(4 * (options.max_batch + options.queue_limit) + 16)),
      engine_thread_([this] { Run(); }) {
  absl::MutexLock lock(&link_->mutex);
  link_->scheduler = this;
}

Scheduler::~Scheduler() {
  Drain(absl::ZeroDuration());
  {
    absl::MutexLock lock(&link_->mutex);
    link_->scheduler = nullptr;
  }
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  engine_thread_.join();
  for (const auto& [ticket, call] : calls_) call->sink->Failed(Draining());
}

void Scheduler::Run() {
  SetThreadRole(ThreadRole::kComputes);
  model_.PinThreads();
  bool stepped = false;
  while (RunPosted(stepped ? absl::ZeroDuration() : IdleWait())) {
    busy_since_ns_ = clock_.SteadyNanos();
    DropStalled();
    StartCalls();
    stepped = Step();
    PublishLoad();
  }
  under_way_ = nullptr;
  busy_since_ns_ = 0;
}

bool Scheduler::HasPosted() const {
  absl::MutexLock lock(&mutex_);
  return !posted_.empty();
}

// A paused call has nobody to wake it.
absl::Duration Scheduler::IdleWait() const {
  const bool paused = std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
    return entry.second->paused_since_ns != 0;
  });
  return paused ? kPausedPoll : absl::InfiniteDuration();
}

// False when the scheduler stops.
bool Scheduler::RunPosted(absl::Duration wait) {
  std::vector<Task> tasks;
  {
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !posted_.empty() || stopping_;
    };
    absl::MutexLock lock(&mutex_);
    if (posted_.empty() && wait > absl::ZeroDuration()) {
      busy_since_ns_ = 0;
      mutex_.AwaitWithTimeout(absl::Condition(&ready), wait);
      busy_since_ns_ = clock_.SteadyNanos();
    }
    if (stopping_ && posted_.empty()) return false;
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
  return true;
}

Scheduler::Call* Scheduler::Find(Ticket ticket) {
  const auto it = calls_.find(ticket);
  return it == calls_.end() ? nullptr : it->second.get();
}

void Scheduler::Enqueue(std::unique_ptr<Call> call) {
  if (!call->request.rebuild) {
    CancelRebuilds();
  } else if (!calls_.empty()) {
    return call->sink->Failed(Interrupted());
  }
  const Ticket ticket = call->ticket;
  calls_.emplace(ticket, std::move(call));
}

void Scheduler::CancelRebuilds() {
  std::vector<Ticket> rebuilds;
  for (const auto& [ticket, call] : calls_) {
    if (call->request.rebuild && call->phase != Phase::kCommitting) rebuilds.push_back(ticket);
  }
  for (const Ticket ticket : rebuilds) Fail(*Find(ticket), Interrupted());
}

void Scheduler::StartCalls() {
  std::vector<policy::WaitingCall> waiting;
  std::vector<Call*> candidates;
  std::vector<std::string_view> busy;
  size_t active = 0;
  for (const auto& [ticket, call] : calls_) {
    const std::string_view context = call->request.context_id;
    if (call->phase == Phase::kWaiting) {
      waiting.push_back({.order = call->order, .context = context});
      candidates.push_back(call.get());
      continue;
    }
    if (!context.empty()) busy.push_back(context);
    if (call->phase != Phase::kCommitting) ++active;
  }
  if (waiting.empty()) return;
  const size_t slots = static_cast<size_t>(options_.max_batch) - active;
  for (const size_t i : policy::ChooseStarts(waiting, busy, slots, clock_.SteadyNanos())) {
    Open(*candidates[i]);
  }
}

void Scheduler::Open(Call& call) {
  const int64_t now = clock_.SteadyNanos();
  call.times.queue = now - call.times.arrived_ns;
  call.phase = Phase::kOpening;
  call.phase_since_ns = now;
  metrics_.Started(call.request.call_id, call.times.arrived_ns, now);
  auto lease = leases_.Open({.app_id = call.request.app_id,
                             .context_id = call.request.context_id,
                             .call_id = call.request.call_id,
                             .rebuild = call.request.rebuild,
                             .claim_chunks = ChunksToBegin(call.request),
                             .request_id = call.request.request_id,
                             .request_digest = call.request.request_digest},
                            std::make_shared<Events>(link_, call));
  if (!lease.ok()) return Fail(call, lease.status());
  call.lease = *std::move(lease);
}

// Any thread.
void Scheduler::Prepare(Ticket ticket, std::shared_ptr<const std::atomic<bool>> over,
                        CallRequest request, std::shared_ptr<Lease> lease, OpenedLease opened) {
  Task prepare = [this, ticket, over = std::move(over), request = std::move(request),
                  lease = std::move(lease), opened = std::move(opened),
                  opened_ns = clock_.SteadyNanos()]() mutable {
    const engine::CancelCheck cancelled = [&over] { return over->load(); };
    auto created = Session::Create(env_, request, std::move(opened), &cancelled);
    if (!created.ok()) {
      return Post([this, ticket, status = created.status()] { OnBroken(ticket, status); });
    }
    std::shared_ptr<Session> session = *std::move(created);
    if (const auto chunk = session->faulty_chunk()) {
      metrics_.Faulted();
      lease->Fault(*chunk, "content does not match its identity");
    }
    const auto claim = session->NextClaim(kPromptAhead);
    Post([this, ticket, session, opened_ns] { OnPrepared(ticket, session, opened_ns); });
    // From here on the session is the engine thread's, and its blocks come after it.
    if (claim.has_value()) lease->Claim(claim->first, claim->count);
  };
  if (!office_.Post(std::move(prepare))) {
    Post([this, ticket] { OnBroken(ticket, absl::InternalError("office is full")); });
  }
}

void Scheduler::OnPrepared(Ticket ticket, const std::shared_ptr<Session>& session,
                           int64_t opened_ns) {
  Call* call = Find(ticket);
  if (call == nullptr) return;
  const int64_t now = clock_.SteadyNanos();
  const CallUsage& usage = session->usage();
  metrics_.LeaseOpened(call->request.call_id, call->phase_since_ns, opened_ns);
  metrics_.Loaded(call->request.call_id, opened_ns, now, usage);
  call->session = session;
  call->phase = Phase::kRunning;
  call->times.load = now - call->phase_since_ns;
  call->phase_since_ns = now;
  if (call->request.rebuild && session->pending_rows() == 0) {
    return Fail(*call, absl::FailedPreconditionError("all of the context's KV is as it should be"));
  }
  call->sink->Accepted({.reused_tokens = usage.reused_tokens,
                        .prefill_tokens = usage.prefilled_tokens,
                        .queue_position = call->queue_position});
}

void Scheduler::OnClaimed(Ticket ticket, std::vector<ChunkBlocks> chunks,
                          const std::string& refused) {
  Call* call = Find(ticket);
  if (call == nullptr || call->phase != Phase::kRunning) return;
  if (UnderWay(*call)) {
    after_step_.push_back([this, ticket, chunks = std::move(chunks), refused]() mutable {
      OnClaimed(ticket, std::move(chunks), refused);
    });
    return;
  }
  if (refused.empty()) {
    const absl::Status added = call->session->AddBlocks(chunks);
    return added.ok() ? ClaimAhead(*call) : Fail(*call, added);
  }
  call->session->ClaimRefused();
  if (call->session->ready_rows() > 0 && !call->request.rebuild)
    return;  // asks again when it has used what it has
  if (!call->session->has_answer()) {
    return Fail(*call, absl::ResourceExhaustedError(
                           absl::StrCat("the KV arena is full (", refused,
                                        "): retry later, or raise store.arena_bytes")));
  }
  call->sink->Delta(call->session->Finish(engine::FinishReason::kContextFull));
  call->broken_off = true;  // a retry may find more room
  Commit(*call);
}

void Scheduler::DropStalled() {
  const int64_t now = clock_.SteadyNanos();
  std::vector<Ticket> stalled;
  for (const auto& [ticket, call] : calls_) {
    const bool running = call->phase == Phase::kRunning && call->paused_since_ns != 0;
    if (running && now - call->paused_since_ns > kStalledReaderNs) stalled.push_back(ticket);
  }
  for (const Ticket ticket : stalled) {
    StopNow(ticket, absl::ResourceExhaustedError(absl::StrCat(
                        "the answer was ended: nothing of it was read for ",
                        kStalledReaderNs / kNanosPerSecond, " s; read the stream as it comes")));
  }
}

// `why` is OK when the caller wants it.
void Scheduler::StopNow(Ticket ticket, const absl::Status& why) {
  Call* call = Find(ticket);
  if (call == nullptr) return;
  if (call->phase == Phase::kCommitting) return;
  if (UnderWay(*call) && under_way_->parts.size() > 1) {  // its neighbours' rows are not lost
    after_step_.push_back([this, ticket, why] { StopNow(ticket, why); });
    return;
  }
  const bool running = call->phase == Phase::kRunning;
  if (running && call->session->has_answer()) {
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

void Scheduler::Commit(Call& call) {
  if (UnderWay(call)) under_way_ = nullptr;
  const int64_t now = clock_.SteadyNanos();
  call.times.decode = call.times.first_token_ns == 0 ? 0 : now - call.times.first_token_ns;
  call.phase = Phase::kCommitting;
  call.phase_since_ns = now;
  call.paused_since_ns = 0;
  Task commit = [session = call.session, lease = call.lease, times = call.times,
                 unanswered = call.unanswered, broken_off = call.broken_off,
                 unix_s = clock_.UnixNanos() / kNanosPerSecond]() {
    LeaseCommit result = unanswered ? session->MakeUnanswered() : session->MakeCommit(unix_s);
    result.broken_off = broken_off;
    result.outcome = session->Outcome();
    result.outcome.times = times;
    lease->Commit(std::move(result));
  };
  if (!office_.Post(std::move(commit))) Fail(call, absl::InternalError("office is full"));
}

void Scheduler::OnCommitted(Ticket ticket) {
  Call* call = Find(ticket);
  if (call == nullptr) return;
  const int64_t now = clock_.SteadyNanos();
  metrics_.Committed(call->request.call_id, call->phase_since_ns, now);
  if (!call->ended.ok()) return Fail(*call, call->ended);
  call->times.commit = now - call->phase_since_ns;
  CallOutcome outcome = call->session->Outcome();
  outcome.times = call->times;
  EndName(*call, /*stored=*/!call->broken_off);
  if (call->request.rebuild) {
    metrics_.Upgraded();
  } else {
    metrics_.Finished(call->request.call_id, outcome);
  }
  call->sink->Finished(outcome);
  Erase(ticket);
}

void Scheduler::OnBroken(Ticket ticket, const absl::Status& status) {
  Call* call = Find(ticket);
  if (call != nullptr) Fail(*call, status);
}

// Destroys the call. Its lease and its name go first: whoever is told may try again at once. The
// office may still hold the lease for a moment after it has prepared the call, so it is not enough
// to let go of it.
void Scheduler::Fail(Call& call, const absl::Status& status) {
  if (UnderWay(call)) under_way_ = nullptr;
  if (!call.request.rebuild) metrics_.Failed();
  if (call.phase == Phase::kRunning) call.lease->Abort();
  call.lease = nullptr;
  EndName(call, /*stored=*/false);
  call.sink->Failed(status);
  Erase(call.ticket);
}

void Scheduler::EndName(const Call& call, bool stored) {
  absl::MutexLock lock(&mutex_);
  names_.End(call.request.app_id, call.request.request_id, stored, clock_.SteadyNanos());
}

void Scheduler::Erase(Ticket ticket) {
  const bool rebuild = Find(ticket)->request.rebuild;
  calls_.erase(ticket);
  PublishLoad();
  absl::MutexLock lock(&mutex_);
  if (!rebuild) --admitted_;
}

void Scheduler::PublishLoad() {
  size_t queued = 0, running = 0;
  int64_t pending = 0;
  for (const auto& [ticket, call] : calls_) {
    if (call->request.rebuild) continue;
    ++(call->phase == Phase::kWaiting ? queued : running);
    if (call->session == nullptr) {
      pending += EstimatedTokens(call->request.answer);
    } else if (!call->session->decoding()) {
      pending += call->session->pending_rows();
    }
  }
  metrics_.Load(running, queued);
  absl::MutexLock lock(&mutex_);
  load_.running = running;
  load_.queued = queued;
  load_.pending_prefill_tokens = pending;
}

}  // namespace withy::model_worker
