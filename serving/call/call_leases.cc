#include "serving/call/call_leases.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "policy/constants.h"
#include "policy/step/step_plan.h"

namespace withy::serving {
namespace {

// Rows of a prompt whose blocks are claimed before they are computed.
int32_t PromptRowsAhead(const SessionEnv& env) {
  return policy::kPiecesClaimedAhead * env.prompt_rows;
}

// Chunks that the session of a stateless call will claim first, when its prompt is counted.
int32_t ChunksToBegin(const CallRequest& request, const SessionEnv& env) {
  if (!request.context_id.empty() || request.prompt_tokens <= 0) return 0;
  constexpr int32_t kChunk = engine::kChunkTokens;
  const int32_t tokens = std::min(request.prompt_tokens + kChunk / 2, PromptRowsAhead(env));
  return (tokens + kChunk - 1) / kChunk;
}

// Tokens that the call's context may come to have. Its session claims slots for no more.
int32_t TokensToNeed(const CallRequest& request, const SessionEnv& env) {
  if (request.rebuild) return 0;
  if (request.whole_tokens <= 0) return env.window;
  const int64_t drafts = request.speculation == policy::SpeculationMode::kOff ? 0 : env.draft_slots;
  const int64_t tokens = int64_t{request.whole_tokens} + request.answer.max_tokens + drafts;
  return static_cast<int32_t>(
      std::min<int64_t>(tokens + policy::kAnswerRowsClaimedAhead, env.window));
}

absl::Status TooManyTasks() {
  return absl::InternalError("model_worker: too many calls are prepared and committed at once");
}

}  // namespace

struct CallLeases::Link {
  absl::Mutex mutex;
  CallLeases* leases ABSL_GUARDED_BY(mutex) = nullptr;  // null: detached
};

// Brings a lease's events to the inbox. Preparing begins at once, without waiting for the step that
// is under way.
class CallLeases::Events final : public LeaseEvents {
 public:
  Events(std::shared_ptr<Link> link, const Call& call)
      : link_(std::move(link)),
        ticket_(call.ticket),
        preparing_(std::make_shared<Preparing>(
            Preparing{.ticket = call.ticket, .over = call.over, .session = {}, .lease = {}})),
        request_(call.request) {}

  void OnOpened(std::shared_ptr<Lease> lease, OpenedLease opened) override {
    With([&](CallLeases& leases) {
      leases.Prepare(preparing_, std::move(request_), std::move(lease), std::move(opened));
    });
  }
  void OnShared(std::vector<ResidentChunk> chunks) override {
    With([&](CallLeases& leases) { leases.TakeShared(preparing_, std::move(chunks)); });
  }
  void OnLoad(LoadEvent event) override {
    // The step that waits for layers goes on; another one need not be left for them.
    const bool interrupts = event.what.kind != policy::KvLoadEvent::Kind::kLayers;
    With([&](CallLeases& leases) {
      leases.inbox_.Post(
          [&results = leases.results_, ticket = ticket_, event = std::move(event)]() mutable {
            results.OnLoad(ticket, std::move(event));
          },
          interrupts);
    });
  }
  void OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) override {
    With([&](CallLeases& leases) {
      leases.inbox_.Post([&results = leases.results_, ticket = ticket_, chunks = std::move(chunks),
                          refused = std::move(refused)]() mutable {
        results.OnClaimed(ticket, std::move(chunks), std::move(refused));
      });
    });
  }
  void OnCommitted() override {
    With([&](CallLeases& leases) {
      leases.inbox_.Post(
          [&results = leases.results_, ticket = ticket_] { results.OnCommitted(ticket); });
    });
  }
  void OnBroken(absl::Status status) override {
    With([&](CallLeases& leases) {
      leases.inbox_.Post([&results = leases.results_, ticket = ticket_,
                          status = std::move(status)] { results.OnBroken(ticket, status); });
    });
  }

 private:
  template <typename Use>
  void With(Use use) {
    absl::MutexLock lock(&link_->mutex);
    if (link_->leases != nullptr) use(*link_->leases);
  }
  const std::shared_ptr<Link> link_;
  const Ticket ticket_;
  const std::shared_ptr<Preparing> preparing_;  // shared with tasks of the background thread
  CallRequest request_;
};

CallLeases::CallLeases(const SessionEnv& env, LeaseSource& source, TaskInbox& inbox,
                       LeaseResults& results, Clock& clock, WorkerMetrics& metrics,
                       size_t task_limit)
    : env_(env),
      source_(source),
      inbox_(inbox),
      results_(results),
      clock_(clock),
      metrics_(metrics),
      link_(std::make_shared<Link>()),
      background_thread_(task_limit) {
  absl::MutexLock lock(&link_->mutex);
  link_->leases = this;
}

CallLeases::~CallLeases() { Detach(); }

void CallLeases::Detach() {
  absl::MutexLock lock(&link_->mutex);
  link_->leases = nullptr;
}

absl::Status CallLeases::Open(Call& call) {
  auto lease = source_.Open({.app_id = call.request.app_id,
                             .context_id = call.request.context_id,
                             .call_id = call.request.call_id,
                             .rebuild = call.request.rebuild,
                             .claim_chunks = ChunksToBegin(call.request, env_),
                             .request_id = call.request.request_id,
                             .request_digest = call.request.request_digest,
                             .level_percent = call.request.answer.level_percent,
                             .prompt_tokens = call.request.prompt_tokens,
                             .need_tokens = TokensToNeed(call.request, env_)},
                            std::make_shared<Events>(link_, call));
  if (!lease.ok()) return lease.status();
  call.lease = *std::move(lease);
  return absl::OkStatus();
}

void CallLeases::Prepare(std::shared_ptr<Preparing> call, CallRequest request,
                         std::shared_ptr<Lease> lease, OpenedLease opened) {
  const Ticket ticket = call->ticket;
  PostTask(ticket,
           [this, call = std::move(call), request = std::move(request), lease = std::move(lease),
            opened = std::move(opened), opened_ns = clock_.SteadyNanos()]() mutable {
             const engine::CancelCheck cancelled = [&call] { return call->over->load(); };
             auto created = Session::Create(env_, request, std::move(opened), &cancelled);
             if (!created.ok()) {
               return inbox_.Post([this, ticket = call->ticket, status = created.status()] {
                 results_.OnBroken(ticket, status);
               });
             }
             call->session = *std::move(created);
             call->lease = lease;
             call->opened_ns = opened_ns;
             if (const auto chunk = call->session->kv().faulty_chunk()) {
               metrics_.Faulted();
               lease->Fault(*chunk, "content does not match its identity");
             }
             WantedChunks wanted = call->session->Wanted();
             if (wanted.ways.empty()) return EndPreparing(*call);
             lease->Share(std::move(wanted));
           });
}

void CallLeases::TakeShared(std::shared_ptr<Preparing> call, std::vector<ResidentChunk> chunks) {
  const Ticket ticket = call->ticket;
  PostTask(ticket, [this, call = std::move(call), chunks = std::move(chunks)] {
    call->session->AdoptShared(chunks);
    EndPreparing(*call);
  });
}

void CallLeases::EndPreparing(const Preparing& call) {
  const auto claim = call.session->rows().NextClaim(PromptRowsAhead(env_));
  inbox_.Post([this, ticket = call.ticket, session = call.session, opened_ns = call.opened_ns] {
    results_.OnPrepared(ticket, session, opened_ns);
  });
  // From here on the session is the inbox's thread's, and its blocks come after it.
  const std::shared_ptr<Lease> lease = call.lease.lock();
  if (claim.has_value() && lease != nullptr) lease->Claim(claim->first, claim->count);
}

void CallLeases::PostTask(Ticket ticket, Task task) {
  if (background_thread_.Post(std::move(task))) return;
  inbox_.Post([this, ticket] { results_.OnBroken(ticket, TooManyTasks()); });
}

void CallLeases::ClaimAhead(Call& call) {
  const int32_t rows =
      call.session->decoding() ? policy::kAnswerRowsClaimedAhead : PromptRowsAhead(env_);
  if (const auto range = call.session->rows().NextClaim(rows)) {
    call.lease->Claim(range->first, range->count);
  }
  YieldAhead(call);
}

void CallLeases::YieldAhead(Call& call) {
  if (const auto more =
          call.session->rows().NextYield(PromptRowsAhead(env_), clock_.SteadyNanos())) {
    call.lease->Yield(more->computed_before, more->chunks);
  }
}

absl::Status CallLeases::Commit(const Call& call) {
  Task commit = [session = call.session, lease = call.lease, times = call.times,
                 unanswered = call.unanswered, broken_off = call.broken_off,
                 unix_s = clock_.UnixNanos() / kNanosPerSecond]() {
    LeaseCommit result = unanswered ? session->MakeUnanswered() : session->MakeCommit(unix_s);
    result.broken_off = broken_off;
    result.outcome = session->Outcome();
    result.outcome.times = times;
    lease->Commit(std::move(result));
  };
  return background_thread_.Post(std::move(commit)) ? absl::OkStatus() : TooManyTasks();
}

void CallLeases::AwaitIdle() {
  absl::Notification idle;
  if (background_thread_.Post([&idle] { idle.Notify(); })) idle.WaitForNotification();
}

}  // namespace withy::serving
