#include "context_store/lease/lease_reactor.h"

#include <utility>

#include "base/status.h"
#include "context_store/convert.h"
#include "rpc/status.h"

namespace withy::context_store {

LeaseReactor* LeaseReactor::Create(LeaseDesk& desk, WorkPool& pool, rpc::OpenStreams& streams) {
  streams.Begin();
  auto reactor = std::shared_ptr<LeaseReactor>(new LeaseReactor(desk, pool, streams));
  reactor->self_ = reactor;
  reactor->StartRead(&reactor->request_);
  return reactor.get();
}

LeaseReactor::Stage LeaseReactor::stage() const {
  absl::MutexLock lock(&mutex_);
  return stage_;
}

LeaseId LeaseReactor::lease() const {
  absl::MutexLock lock(&mutex_);
  return lease_;
}

void LeaseReactor::OnReadDone(bool ok) {
  if (!ok) {
    // The client may close its side after a commit. Before one, the stream is broken.
    if (stage() != Stage::kCommitting) {
      End(absl::CancelledError("the stream ended without commit or abort"));
    }
    return;
  }
  if (const absl::Status status = Handle(); !status.ok()) {
    End(status);
    return;
  }
  absl::MutexLock lock(&mutex_);
  const bool more = stage_ == Stage::kOpening || stage_ == Stage::kOpen;
  if (more && !finished_) StartRead(&request_);
}

absl::Status LeaseReactor::Handle() {
  const Stage now = stage();
  if (now == Stage::kOver) return absl::OkStatus();
  const auto step = request_.step_case();
  const Stage needed = step == v1::LeaseRequest::kOpen ? Stage::kNew : Stage::kOpen;
  if (now != needed || step == v1::LeaseRequest::STEP_NOT_SET) {
    return absl::InvalidArgumentError(
        "lease step out of order: send `open` first and once, other steps after `opened`");
  }
  switch (step) {
    case v1::LeaseRequest::kOpen:
      return HandleOpen(request_.open());
    case v1::LeaseRequest::kBegin:
      return desk_.Begin(lease(), request_.begin().app_id(), request_.begin().call_id(),
                         request_.begin().need_tokens());
    case v1::LeaseRequest::kClaim:
      return HandleClaim(request_.claim());
    case v1::LeaseRequest::kShare:
      return HandleShare(request_.share());
    case v1::LeaseRequest::kFault:
      return desk_.Fault(lease(), request_.fault().chunk(), request_.fault().reason());
    case v1::LeaseRequest::kYield:
      desk_.Yield(lease(), request_.yield().computed_before(), request_.yield().chunks());
      return absl::OkStatus();
    case v1::LeaseRequest::kCommit:
      return HandleCommit();
    default:
      desk_.Abort(lease());
      End(absl::OkStatus());
      return absl::OkStatus();
  }
}

absl::Status LeaseReactor::HandleOpen(const v1::LeaseOpen& open) {
  const bool stateless = open.context_id().empty();
  if (open.claim_chunks() > 0 && !stateless) {
    return absl::InvalidArgumentError("claim_chunks is for stateless calls: context_id is set");
  }
  bool granted = false;
  {
    // Held during the opening: OnGranted may be called at once and needs the lease's number.
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const LeaseOpening opening,
                           desk_.Open({open.epoch(),
                                       open.app_id(),
                                       open.context_id(),
                                       open.call_id(),
                                       open.rebuild(),
                                       {open.request_id(), open.request_digest()},
                                       open.level_percent(),
                                       open.prompt_tokens(),
                                       open.need_tokens()},
                                      shared_from_this()));
    lease_ = opening.id;
    stage_ = Stage::kOpening;
    claim_chunks_ = open.claim_chunks();
    granted = opening.granted;
  }
  if (granted && stateless && !desk_.MakesRoom(open.claim_chunks())) {
    Load();  // reads nothing
  } else if (granted) {
    OnGranted();
  }
  return absl::OkStatus();
}

void LeaseReactor::OnGranted() {
  if (!pool_.TryRun([self = shared_from_this()] { self->Load(); })) {
    End(absl::ResourceExhaustedError("too many disk operations wait in context_store: retry"));
  }
}

void LeaseReactor::Load() {
  if (stage() != Stage::kOpening) return;
  const absl::StatusOr<LoadedContext> loaded = desk_.Load(lease());
  if (!loaded.ok()) return End(loaded.status());
  absl::StatusOr<v1::LeaseOpened> opened = ToProto(lease(), *loaded);
  if (!opened.ok()) return End(opened.status());
  if (!ClaimAtOnce(&*opened)) return;
  v1::LeaseEvent event;
  *event.mutable_opened() = *std::move(opened);
  SendOpened(std::move(event));
}

void LeaseReactor::SendOpened(v1::LeaseEvent event) {
  absl::MutexLock lock(&mutex_);
  if (stage_ == Stage::kOver || ended_) return;
  stage_ = Stage::kOpen;
  Queue(std::move(event));
  for (v1::LeaseEvent& arrival : std::exchange(early_, {})) Queue(std::move(arrival));
}

// May come before the lease is told open.
void LeaseReactor::OnLoad(LoadEvent of_load) {
  v1::LeaseEvent event = ToProto(of_load);
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  if (stage_ == Stage::kOpening) {
    early_.push_back(std::move(event));
  } else if (event.has_layer_ready() && outgoing_.size() > 1 &&
             outgoing_.back().has_layer_ready()) {
    outgoing_.back() = std::move(event);  // the earlier layers are said with it
  } else {
    Queue(std::move(event));
  }
}

bool LeaseReactor::ClaimAtOnce(v1::LeaseOpened* opened) {
  uint32_t chunks = 0;
  {
    absl::MutexLock lock(&mutex_);
    chunks = claim_chunks_;
  }
  if (chunks == 0) return true;
  const auto claimed = desk_.Claim(lease(), 0, chunks, /*may_wait=*/false);
  if (absl::IsResourceExhausted(claimed.status())) return true;
  if (!claimed.ok()) {
    End(claimed.status());
    return false;
  }
  for (const ChunkSlot& chunk : claimed->chunks) *opened->add_claimed() = ToProto(chunk);
  return true;
}

absl::Status LeaseReactor::HandleClaim(const v1::LeaseClaim& claim) {
  const auto on_pool = [self = shared_from_this(), claim] {
    const absl::Status status = self->Claim(claim);
    // A commit or an abort that has come meanwhile is answered by itself.
    if (!status.ok() && self->stage() == Stage::kOpen) self->End(status);
  };
  if (desk_.MakesRoom(claim.chunks()) && pool_.TryRun(on_pool)) return absl::OkStatus();
  return Claim(claim);
}

absl::Status LeaseReactor::Claim(const v1::LeaseClaim& claim) {
  absl::StatusOr<ClaimAnswer> claimed = desk_.Claim(lease(), claim.first_chunk(), claim.chunks());
  if (absl::IsResourceExhausted(claimed.status())) {
    OnClaimed({}, std::string(claimed.status().message()));
  } else if (!claimed.ok()) {
    return claimed.status();
  } else if (!claimed->waits) {
    OnClaimed(std::move(claimed->chunks), "");
  }
  return absl::OkStatus();
}

void LeaseReactor::OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) {
  v1::LeaseEvent event;
  v1::LeaseClaimed* message = event.mutable_claimed();
  for (const ChunkSlot& chunk : chunks) *message->add_chunks() = ToProto(chunk);
  message->set_refused(std::move(refused));
  Send(std::move(event));
}

absl::Status LeaseReactor::HandleShare(const v1::LeaseShare& share) {
  WITHY_ASSIGN_OR_RETURN(const ResidentChunks shared,
                         desk_.Share(lease(), share.first_chunk(), FromProto(share)));
  v1::LeaseEvent event;
  v1::LeaseShared* message = event.mutable_shared();
  for (const ResidentChunk& chunk : shared) *message->add_chunks() = ToProto(chunk);
  Send(std::move(event));
  return absl::OkStatus();
}

absl::Status LeaseReactor::HandleCommit() {
  WITHY_ASSIGN_OR_RETURN(LeaseOutcome outcome, FromProto(request_.commit()));
  request_.Clear();
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ == Stage::kOver) return absl::OkStatus();
    stage_ = Stage::kCommitting;
  }
  const auto shared = std::make_shared<LeaseOutcome>(std::move(outcome));
  if (!pool_.TryRun([self = shared_from_this(), shared] { self->Commit(std::move(*shared)); })) {
    // The stream may have ended already and left the lease to this task, which now cannot run. A
    // client that commits has stopped writing.
    desk_.Abort(lease());
    return absl::ResourceExhaustedError("too many disk operations wait in context_store: retry");
  }
  return absl::OkStatus();
}

void LeaseReactor::Commit(LeaseOutcome outcome) {
  // Commits even if the client is gone by now, because it asked for it.
  const absl::StatusOr<uint64_t> revision = desk_.Commit(lease(), std::move(outcome));
  if (!revision.ok()) {
    desk_.Break(lease());
    return End(revision.status());
  }
  v1::LeaseEvent event;
  event.mutable_committed()->set_revision(*revision);
  Send(std::move(event));
  End(absl::OkStatus());
}

void LeaseReactor::OnEnded(const absl::Status& status) { End(status); }

void LeaseReactor::Send(v1::LeaseEvent event) {
  absl::MutexLock lock(&mutex_);
  if (!ended_) Queue(std::move(event));
}

void LeaseReactor::Queue(v1::LeaseEvent event) {
  outgoing_.push_back(std::move(event));
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void LeaseReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    outgoing_.pop_front();
    if (!ok) outgoing_.clear();
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else {
      FinishIfOver();
    }
  }
  if (!ok) End(absl::CancelledError("the stream broke"));
}

void LeaseReactor::End(const absl::Status& status) {
  Stage before;
  LeaseId lease = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    final_status_ = status;
    before = std::exchange(stage_, Stage::kOver);
    lease = lease_;
  }
  // Before `opened` the worker knew no block. During a commit the pool's task ends the lease.
  if (before == Stage::kOpening) desk_.Abort(lease);
  if (before == Stage::kOpen) desk_.Break(lease);
  absl::MutexLock lock(&mutex_);
  released_ = true;
  FinishIfOver();
}

// Finishes only after the lease is over, because the client may want the context at once.
void LeaseReactor::FinishIfOver() {
  if (!released_ || finished_ || !outgoing_.empty()) return;
  finished_ = true;
  Finish(rpc::ToGrpc(final_status_));
}

void LeaseReactor::OnCancel() {
  // Keeps the reactor alive until the lease is broken.
  const std::shared_ptr<LeaseReactor> keep = shared_from_this();
  End(absl::CancelledError("the client went away"));
}

void LeaseReactor::OnDone() {
  const std::shared_ptr<LeaseReactor> last = std::move(self_);
  streams_.End();
}

}  // namespace withy::context_store
