#include "store_client/lease_stream.h"

#include <algorithm>
#include <utility>

#include "rpc/status.h"
#include "wire/wire.h"

namespace withy::store_client {
namespace {

serving::ChunkSlot FromWire(const v1::ChunkSlot& wire) {
  return {.chunk = static_cast<int32_t>(wire.chunk()),
          .slot = {wire.units(), v1::KvFormat_IsValid(wire.format())
                                     ? static_cast<engine::KvFormat>(wire.format())
                                     : engine::KvFormat::kEmpty}};
}

serving::ChunkName FromWire(const v1::ChunkIdentity& wire) {
  serving::ChunkName name;
  // An identity of another length matches no chunk.
  const size_t size = std::min(wire.identity().size(), name.identity.size());
  std::copy_n(wire.identity().begin(), size, name.identity.begin());
  name.tokens = static_cast<int32_t>(wire.tokens());
  name.level_percent = static_cast<int32_t>(wire.model_level_percent());
  name.density = wire.density();
  name.density_rows = static_cast<int32_t>(wire.density_rows());
  return name;
}

serving::ResidentChunk::State FromWire(v1::ChunkState wire) {
  switch (wire) {
    case v1::CHUNK_STATE_READING:
      return serving::ResidentChunk::State::kReading;
    case v1::CHUNK_STATE_TO_COMPUTE:
      return serving::ResidentChunk::State::kToCompute;
    default:
      return serving::ResidentChunk::State::kResident;
  }
}

serving::ResidentChunk FromWire(const v1::ResidentChunk& wire) {
  return {.where = FromWire(wire.where()),
          .name = FromWire(wire.identity()),
          .state = FromWire(wire.state())};
}

serving::OpenedLease FromWire(const v1::LeaseOpened& wire) {
  serving::OpenedLease opened;
  for (const v1::Segment& segment : wire.segments()) {
    opened.segments.push_back(engine::SegmentFromWire(segment));
  }
  for (const v1::ResidentChunk& chunk : wire.resident()) {
    opened.resident.push_back(FromWire(chunk));
  }
  for (const v1::ChunkSlot& chunk : wire.claimed()) opened.claimed.push_back(FromWire(chunk));
  opened.left_out = static_cast<int32_t>(wire.left_out_segments());
  return opened;
}

serving::LoadEvent LoadFromWire(const v1::LeaseEvent& wire) {
  using Kind = policy::KvLoadEvent::Kind;
  serving::LoadEvent event;
  if (wire.has_layer_ready()) {
    event.what = {.kind = Kind::kLayers,
                  .change = wire.layer_ready().change(),
                  .layers = wire.layer_ready().layer() + 1};
  } else if (wire.has_load_failed()) {
    event.what = {.kind = Kind::kFailed,
                  .change = wire.load_failed().change(),
                  .chunks = {wire.load_failed().chunk()}};
  } else {
    event.what = {.kind = Kind::kYielded,
                  .change = wire.yielded().change(),
                  .arrived_blocks = wire.yielded().arrived_blocks()};
    for (const v1::ChunkSlot& chunk : wire.yielded().chunks()) {
      event.what.chunks.push_back(chunk.chunk());
      event.slots.push_back(FromWire(chunk));
    }
  }
  return event;
}

// What a caller is told when the stream ended without commit: errors of the store as they are, a
// lost store as a reason to retry.
absl::Status BrokenStatus(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::AbortedError("context_store ended the lease: retry");
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::UnavailableError("context_store went away during the call: retry");
    default:
      return rpc::FromGrpc(status);
  }
}

}  // namespace

// What the core holds. The stream may outlive it: gRPC ends it in its own time.
class LeaseStream::Handle final : public serving::Lease {
 public:
  explicit Handle(std::shared_ptr<LeaseStream> stream) : stream_(std::move(stream)) {}
  ~Handle() override { stream_->Drop(); }

  void Begin(std::string app_id, uint64_t call_id, int32_t need_tokens) override {
    v1::LeaseRequest request;
    request.mutable_begin()->set_app_id(std::move(app_id));
    request.mutable_begin()->set_call_id(call_id);
    request.mutable_begin()->set_need_tokens(static_cast<uint32_t>(need_tokens));
    stream_->Send(std::move(request), /*last=*/false);
  }
  void Share(serving::WantedChunks wanted) override {
    v1::LeaseRequest request;
    request.mutable_share()->set_first_chunk(static_cast<uint32_t>(wanted.first_chunk));
    for (const std::vector<serving::ChunkName>& way : wanted.ways) {
      v1::ChunkIdentities* identities = request.mutable_share()->add_ways();
      for (const serving::ChunkName& name : way) {
        identities->add_identities(name.identity.data(), name.identity.size());
      }
    }
    stream_->Send(std::move(request), /*last=*/false);
  }
  void Claim(int32_t first_chunk, int32_t chunks) override {
    v1::LeaseRequest request;
    request.mutable_claim()->set_first_chunk(static_cast<uint32_t>(first_chunk));
    request.mutable_claim()->set_chunks(static_cast<uint32_t>(chunks));
    stream_->Send(std::move(request), /*last=*/false);
  }
  void Fault(int32_t chunk, std::string reason) override {
    v1::LeaseRequest request;
    request.mutable_fault()->set_chunk(static_cast<uint32_t>(chunk));
    request.mutable_fault()->set_reason(std::move(reason));
    stream_->Send(std::move(request), /*last=*/false);
  }
  void Yield(int32_t computed_before, int32_t most) override {
    v1::LeaseRequest request;
    request.mutable_yield()->set_computed_before(static_cast<uint32_t>(computed_before));
    request.mutable_yield()->set_chunks(static_cast<uint32_t>(most));
    stream_->Send(std::move(request), /*last=*/false);
  }
  void Commit(serving::LeaseCommit commit) override {
    v1::LeaseRequest request;
    *request.mutable_commit() = stream_->context_.to_wire(commit);
    stream_->Send(std::move(request), /*last=*/true);
  }
  void Abort() override { stream_->Drop(); }

 private:
  const std::shared_ptr<LeaseStream> stream_;
};

std::shared_ptr<serving::Lease> LeaseStream::Open(v1::ContextStore::Stub& stub,
                                                  const v1::LeaseOpen& open,
                                                  std::shared_ptr<serving::LeaseEvents> events,
                                                  Context context,
                                                  std::shared_ptr<LeaseStream>* stream) {
  auto self = std::shared_ptr<LeaseStream>(new LeaseStream(std::move(events), std::move(context)));
  auto handle = std::make_shared<Handle>(self);
  {
    absl::MutexLock lock(&self->mutex_);
    self->self_ = self;
    self->handle_ = handle;
    self->outgoing_.emplace_back();
    *self->outgoing_.back().mutable_open() = open;
  }
  // No deadline: it would break the lease of a worker that lives on, whose blocks the store could
  // not give to anybody else. A lease ends with its call, or with the store.
  stub.async()->Lease(&self->client_context_, self.get());
  self->AddHold();  // any thread may write, until nothing more can be read
  self->StartRead(&self->incoming_);
  {
    absl::MutexLock lock(&self->mutex_);
    self->StartNext();
  }
  self->StartCall();
  if (stream != nullptr) *stream = self;
  return handle;
}

void LeaseStream::Send(v1::LeaseRequest request, bool last) {
  absl::MutexLock lock(&mutex_);
  if (ended_ || last_sent_ || writes_over_) return;
  last_sent_ = last;
  outgoing_.push_back(std::move(request));
  if (outgoing_.size() == 1) StartNext();
}

// The core has let go. Before `opened` nothing but `open` may be sent: the blocks that may come
// with it are given back then. To cancel instead would break a lease that the store has opened by
// now.
void LeaseStream::Drop() {
  absl::MutexLock lock(&mutex_);
  if (last_sent_ || writes_over_) return;
  ended_ = true;
  if (opened_) SendAbort();
}

void LeaseStream::SendAbort() {
  last_sent_ = true;
  outgoing_.emplace_back().mutable_abort()->set_reason("the call ended without an answer");
  if (outgoing_.size() == 1) StartNext();
}

// StartWrite only queues work inside gRPC: it may be called under the lock.
void LeaseStream::StartNext() {
  if (outgoing_.size() == 1 && last_sent_) {
    StartWriteLast(&outgoing_.front(), grpc::WriteOptions());
  } else {
    StartWrite(&outgoing_.front());
  }
}

void LeaseStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  outgoing_.pop_front();
  writes_over_ = writes_over_ || !ok;
  if (writes_over_) outgoing_.clear();
  if (!outgoing_.empty()) StartNext();
}

void LeaseStream::OnReadDone(bool ok) {
  if (ok) {
    Dispatch(incoming_);
    StartRead(&incoming_);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    writes_over_ = true;
  }
  RemoveHold();  // OnDone follows
}

void LeaseStream::Dispatch(const v1::LeaseEvent& event) {
  std::shared_ptr<serving::Lease> lease;
  {
    absl::MutexLock lock(&mutex_);
    const bool dropped = ended_ && !opened_;
    opened_ = opened_ || event.has_opened();
    if (dropped && opened_ && !writes_over_) SendAbort();
    if (ended_) return;
    lease = handle_.lock();
    ended_ = event.has_committed();
  }
  if (lease == nullptr && !event.has_committed()) return;
  switch (event.event_case()) {
    case v1::LeaseEvent::kOpened: {
      serving::OpenedLease opened = FromWire(event.opened());
      opened.arena = context_.arena;
      events_->OnOpened(std::move(lease), std::move(opened));
      break;
    }
    case v1::LeaseEvent::kShared: {
      std::vector<serving::ResidentChunk> chunks;
      for (const v1::ResidentChunk& chunk : event.shared().chunks()) {
        chunks.push_back(FromWire(chunk));
      }
      events_->OnShared(std::move(chunks));
      break;
    }
    case v1::LeaseEvent::kClaimed: {
      std::vector<serving::ChunkSlot> chunks;
      for (const v1::ChunkSlot& chunk : event.claimed().chunks()) {
        chunks.push_back(FromWire(chunk));
      }
      events_->OnClaimed(std::move(chunks), event.claimed().refused());
      break;
    }
    case v1::LeaseEvent::kLayerReady:
    case v1::LeaseEvent::kLoadFailed:
    case v1::LeaseEvent::kYielded:
      events_->OnLoad(LoadFromWire(event));
      break;
    case v1::LeaseEvent::kCommitted:
      events_->OnCommitted();
      break;
    default:
      break;
  }
}

void LeaseStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<LeaseStream> last = std::move(self_);
  bool broken = false;
  {
    absl::MutexLock lock(&mutex_);
    writes_over_ = true;
    broken = !ended_;
    ended_ = true;
  }
  const absl::Status reason = BrokenStatus(status);
  if (broken) events_->OnBroken(reason);
  // Told when the stream holds the channel no more: gRPC's threads must not be the last to do so,
  // for a channel that goes waits for them.
  const auto on_done = context_.on_done;
  last.reset();
  on_done(broken ? reason : absl::OkStatus());
}

}  // namespace withy::store_client
