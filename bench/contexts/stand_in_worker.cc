#include "bench/contexts/stand_in_worker.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "engine/kv/block.h"
#include "policy/constants.h"
#include "rpc/channel.h"
#include "rpc/status.h"

namespace withy::bench {
namespace {

using engine::kChunkTokens;
using engine::KvFormat;

constexpr absl::Duration kTimeout = absl::Seconds(120);
constexpr uint32_t kTokensPerChunk = kChunkTokens;
// Densities of chunks are log-normal: as attention has them, a few get most of it.
constexpr double kDensitySpread = 1.5;
constexpr size_t kBytesPerToken = 4;  // of text
constexpr uint32_t kLevelPercent = 100;
constexpr size_t kPieceChunks = 8;  // as a worker computes a call that is alone
// How long a worker that was refused chunks to compute waits before it asks again.
constexpr int64_t kAskAgainNs = 10 * kNanosPerMilli;

uint32_t ChunksFor(uint32_t tokens) { return (tokens + kTokensPerChunk - 1) / kTokensPerChunk; }

struct ChunkRange {
  uint32_t first = 0;
  uint32_t count = 0;
};
// That a call claims which keeps some tokens of a context, of which the first `there` chunks are in
// the arena, and adds some. An unfinished chunk is extended.
ChunkRange ChunksOf(uint32_t there, uint32_t keep_tokens, uint32_t added_tokens) {
  const uint32_t first = std::min(there, ChunksFor(keep_tokens));
  return {.first = first, .count = ChunksFor(keep_tokens + added_tokens) - first};
}

v1::LeaseRequest ClaimOf(const ChunkRange& range) {
  v1::LeaseRequest claim;
  claim.mutable_claim()->set_first_chunk(range.first);
  claim.mutable_claim()->set_chunks(range.count);
  return claim;
}

}  // namespace

uint32_t StandInContext::tokens() const {
  if (chunks.empty()) return 0;
  return static_cast<uint32_t>(chunks.size() - 1) * kTokensPerChunk + chunks.back().tokens();
}

// One lease stream; gives the lease up where it is not committed.
class StandInWorker::Lease {
 public:
  explicit Lease(v1::ContextStore::Stub& stub) {
    rpc::SetTimeout(&context_, kTimeout);
    stream_ = stub.Lease(&context_);
  }
  ~Lease() {
    if (over_) return;
    v1::LeaseRequest request;
    request.mutable_abort();
    (void)Send(request);
    (void)End();
  }

  absl::Status Send(const v1::LeaseRequest& request) {
    return stream_->Write(request) ? absl::OkStatus() : End();
  }
  // May be called while another thread receives.
  bool Write(const v1::LeaseRequest& request) { return stream_->Write(request); }
  absl::StatusOr<v1::LeaseEvent> Receive() {
    v1::LeaseEvent event;
    if (stream_->Read(&event)) return event;
    absl::Status status = End();
    if (status.ok()) status = absl::InternalError("context_store ended a lease without a reason");
    return status;
  }
  // The answer to a claim or a commit. What is left to say of a load that is over is skipped.
  absl::StatusOr<v1::LeaseEvent> ReceiveAnswer() {
    while (true) {
      WITHY_ASSIGN_OR_RETURN(v1::LeaseEvent event, Receive());
      if (!event.has_yielded() && !event.has_layer_ready()) return event;
    }
  }
  absl::Status End() {
    if (over_) return absl::OkStatus();
    over_ = true;
    stream_->WritesDone();
    v1::LeaseEvent rest;
    while (stream_->Read(&rest)) continue;
    return rpc::FromGrpc(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LeaseRequest, v1::LeaseEvent>> stream_;
  bool over_ = false;
};

// What the worker does while a load goes on: chunks that are left to it, in their order, then the
// piece of its prompt, and what the store's events change about them. Of two threads: one reads
// events, one computes.
class StandInWorker::Progress {
 public:
  // `with_piece`: a piece is computed, behind the answer to its claim if it `claims` chunks.
  Progress(const std::vector<v1::ResidentChunk>& resident, uint32_t layers, bool with_piece,
           bool claims)
      : layers_(layers), with_piece_(with_piece), claims_(claims) {
    for (const v1::ResidentChunk& chunk : resident) {
      if (chunk.state() == v1::CHUNK_STATE_TO_COMPUTE) todo_.push_back(chunk.where());
      loading_ = loading_ || chunk.state() == v1::CHUNK_STATE_READING;
    }
  }

  // Takes an event in; returns whether more are to come.
  bool Handle(const v1::LeaseEvent& event) {
    absl::MutexLock lock(&mutex_);
    if (event.has_claimed()) claimed_ = event;
    if (event.has_layer_ready()) ready_ = event.layer_ready().layer() + 1;
    if (event.has_load_failed()) failed_ = std::min(failed_, event.load_failed().chunk());
    if (event.has_yielded()) {
      const auto& left = event.yielded().chunks();
      asked_ = false;
      ask_at_ns_ = Clock::Real().SteadyNanos() + (left.empty() ? kAskAgainNs : 0);
      todo_.insert(todo_.end(), left.begin(), left.end());
    }
    loading_ = ready_ < layers_;
    if (!loading_ && loaded_ns_ == 0) loaded_ns_ = Clock::Real().SteadyNanos();
    return loading_ || (claims_ && !claimed_.has_value());
  }
  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    loading_ = false;
  }

  bool over() {
    absl::MutexLock lock(&mutex_);
    return !loading_ && todo_.empty();
  }
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  uint32_t failed() {
    absl::MutexLock lock(&mutex_);
    return failed_;
  }
  // Clock when all that is read was there; 0: nothing is read.
  int64_t loaded_ns() {
    absl::MutexLock lock(&mutex_);
    return loaded_ns_;
  }
  // The answer to the claim of the piece's chunks, after the last event.
  v1::LeaseEvent claimed() {
    absl::MutexLock lock(&mutex_);
    return claimed_.value_or(v1::LeaseEvent());
  }
  // Whether the piece may go through its next layer, which then is the caller's to compute.
  bool BeginLayer() {
    absl::MutexLock lock(&mutex_);
    if (!MayCompute()) return false;
    ++computed_layers_;
    return true;
  }
  uint32_t layers_left() {
    absl::MutexLock lock(&mutex_);
    return layers_ - computed_layers_;
  }
  // How many chunks to ask for now; 0: none.
  uint32_t ToAskFor() {
    absl::MutexLock lock(&mutex_);
    const bool may = loading_ && ready_ == 0 && !asked_ && todo_.size() <= kPieceChunks &&
                     Clock::Real().SteadyNanos() >= ask_at_ns_;
    asked_ = asked_ || may;
    return may ? static_cast<uint32_t>(2 * kPieceChunks - todo_.size()) : 0;
  }
  // The next piece to compute; waits a moment for something to do.
  std::vector<v1::ChunkSlot> NextPiece() {
    absl::MutexLock lock(&mutex_);
    const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !todo_.empty() || !loading_ || MayCompute();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&something), absl::Milliseconds(2));
    const auto count = static_cast<std::ptrdiff_t>(std::min(kPieceChunks, todo_.size()));
    std::vector<v1::ChunkSlot> piece(todo_.begin(), todo_.begin() + count);
    todo_.erase(todo_.begin(), todo_.begin() + count);
    return piece;
  }

 private:
  // What is recomputed comes first: the piece attends to it.
  bool MayCompute() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool granted = claimed_.has_value() && claimed_->claimed().refused().empty();
    return with_piece_ && (!claims_ || granted) && todo_.empty() && !asked_ &&
           computed_layers_ < ready_;
  }

  const uint32_t layers_;
  const bool with_piece_;
  const bool claims_;
  absl::Mutex mutex_;
  std::vector<v1::ChunkSlot> todo_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::LeaseEvent> claimed_ ABSL_GUARDED_BY(mutex_);
  uint32_t computed_layers_ ABSL_GUARDED_BY(mutex_) = 0;  // of the piece
  uint32_t ready_ ABSL_GUARDED_BY(mutex_) = 0;            // layers of all that is read
  int64_t loaded_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t failed_ ABSL_GUARDED_BY(mutex_) = UINT32_MAX;
  bool loading_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ask_at_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

StandInWorker::StandInWorker(const engine::KvGeometry& geometry, v1::KvCosts costs,
                             const RecomputeCost& recompute, uint64_t seed)
    : geometry_(geometry),
      costs_(std::move(costs)),
      recompute_(recompute),
      work_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
      random_(seed) {}

absl::StatusOr<std::unique_ptr<StandInWorker>> StandInWorker::Connect(
    const std::string& address, const engine::KvGeometry& geometry, const v1::KvCosts& costs,
    const RecomputeCost& recompute, uint64_t seed) {
  std::unique_ptr<StandInWorker> worker(new StandInWorker(geometry, costs, recompute, seed));
  // As the worker's threads that pass messages on, gRPC's among them.
  SetThreadRole(ThreadRole::kCarries);
  worker->stub_ = v1::ContextStore::NewStub(rpc::Connect(address));
  worker->instance_ = RandomId64();
  worker->MakeTemplate();
  WITHY_RETURN_IF_ERROR(worker->BindApp());
  WITHY_RETURN_IF_ERROR(worker->Reattach());
  return worker;
}

template <typename Request, typename Response>
absl::Status StandInWorker::Ask(grpc::Status (v1::ContextStore::Stub::*method)(grpc::ClientContext*,
                                                                               const Request&,
                                                                               Response*),
                                const Request& request, Response* response) const {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kTimeout);
  context.set_wait_for_ready(true);
  return rpc::FromGrpc((stub_.get()->*method)(&context, request, response));
}

absl::Status StandInWorker::BindApp() {
  v1::StoreBindAppRequest bind;
  bind.set_app(absl::StrCat("bench", instance_));
  v1::BindAppResponse bound;
  WITHY_RETURN_IF_ERROR(Ask(&v1::ContextStore::Stub::BindApp, bind, &bound));
  v1::AuthenticateAppRequest authenticate;
  authenticate.set_token(bound.token());
  v1::AuthenticateAppResponse app;
  WITHY_RETURN_IF_ERROR(Ask(&v1::ContextStore::Stub::AuthenticateApp, authenticate, &app));
  app_id_ = app.app_id();
  return absl::OkStatus();
}

absl::Status StandInWorker::Reattach() {
  v1::AttachRequest attach;
  attach.set_model_id(std::string(32, 'b'));
  attach.set_layers(static_cast<uint32_t>(geometry_.layers));
  attach.set_kv_heads(static_cast<uint32_t>(geometry_.kv_heads));
  attach.set_head_dim(static_cast<uint32_t>(geometry_.head_dim));
  attach.set_block_bytes(static_cast<uint32_t>(geometry_.BlockBytes(KvFormat::kQ8)));
  attach.set_pid(getpid());
  attach.set_worker_instance(instance_);
  *attach.mutable_kv_costs() = costs_;
  v1::AttachResponse attached;
  absl::Status status;
  // A call on the connection to a store that was killed may fail at once.
  const absl::Time end = absl::Now() + kTimeout;
  do {
    status = Ask(&v1::ContextStore::Stub::Attach, attach, &attached);
  } while (absl::IsUnavailable(status) && absl::Now() < end);
  WITHY_RETURN_IF_ERROR(status);
  epoch_ = attached.epoch();
  WITHY_ASSIGN_OR_RETURN(connection_,
                         store_client::ConnectArena(attached.arena_socket(),
                                                    {.worker_instance = instance_, .epoch = epoch_},
                                                    attach.block_bytes()));
  return absl::OkStatus();
}

void StandInWorker::MakeTemplate() {
  template_.resize(geometry_.BlockBytes(KvFormat::kQ8) - sizeof(engine::KvBlockHeader));
  for (std::byte& byte : template_) byte = static_cast<std::byte>(random_());
  for (int head = 0; head < geometry_.kv_heads; ++head) {
    const engine::KvOffsets at = geometry_.Offsets(KvFormat::kQ8, head);
    for (const size_t scales : {at.k_scale, at.v_scale}) {
      for (int token = 0; token < kChunkTokens; ++token) {
        const float scale = 0.01f + 0.001f * static_cast<float>(token);
        std::memcpy(&template_[scales - sizeof(engine::KvBlockHeader) +
                               static_cast<size_t>(token) * sizeof scale],
                    &scale, sizeof scale);
      }
    }
  }
}

void StandInWorker::WriteChunk(uint32_t units, uint32_t tokens) {
  const engine::KvSlot slot{units, KvFormat::kQ8};
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    std::byte* block = connection_.arena->At(slot.Block(geometry_, layer));
    engine::KvBlockHeader header;
    std::memcpy(&header, block, sizeof header);  // stamped by the store
    header.layer = static_cast<uint32_t>(layer);
    header.format = KvFormat::kQ8;
    header.filled = static_cast<uint8_t>(tokens);
    std::memcpy(block, &header, sizeof header);
    std::memcpy(block + sizeof header, template_.data(), template_.size());
  }
}

v1::ChunkIdentity StandInWorker::NewIdentity(uint32_t tokens) {
  v1::ChunkIdentity chunk;
  std::string identity(32, '\0');
  for (size_t i = 0; i < identity.size(); i += sizeof(uint64_t)) {
    const uint64_t part = random_();
    std::memcpy(&identity[i], &part, sizeof part);
  }
  std::normal_distribution<double> normal(0, kDensitySpread);
  chunk.set_identity(identity);
  chunk.set_tokens(tokens);
  chunk.set_model_level_percent(kLevelPercent);
  chunk.set_density(static_cast<float>(1e-3 * std::exp(normal(random_))));
  chunk.set_density_rows(1);
  return chunk;
}

absl::StatusOr<StandInContext> StandInWorker::CreateContext() {
  v1::StoreCreateContextRequest request;
  request.set_app_id(app_id_);
  v1::CreateContextResponse response;
  WITHY_RETURN_IF_ERROR(Ask(&v1::ContextStore::Stub::CreateContext, request, &response));
  return StandInContext{.id = response.context().context_id(), .chunks = {}};
}

absl::StatusOr<v1::GetStoreInfoResponse> StandInWorker::GetInfo() {
  v1::GetStoreInfoResponse info;
  WITHY_RETURN_IF_ERROR(
      Ask(&v1::ContextStore::Stub::GetStoreInfo, v1::GetStoreInfoRequest(), &info));
  return info;
}

absl::StatusOr<double> StandInWorker::TimeEmptyCall() {
  const int64_t begin = Clock::Real().SteadyNanos();
  WITHY_RETURN_IF_ERROR(GetInfo().status());
  return Millis(Clock::Real().SteadyNanos() - begin);
}

absl::Status StandInWorker::AwaitIdle() {
  const absl::Time deadline = absl::Now() + kTimeout;
  while (absl::Now() < deadline) {
    WITHY_ASSIGN_OR_RETURN(const v1::GetStoreInfoResponse info, GetInfo());
    if (info.idle_work() == 0) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("context_store has not finished its work on idle contexts after ",
                   absl::ToInt64Seconds(kTimeout), " s"));
}

StandInWorker::Piece StandInWorker::PieceOf(uint32_t tokens, uint32_t prompt_tokens) const {
  const uint32_t rows = std::min(prompt_tokens, static_cast<uint32_t>(policy::kRowsWithoutAnswers));
  return {.keep_tokens = tokens,
          .prompt_tokens = prompt_tokens,
          .layer_ms = recompute_.Ms(tokens, rows) / geometry_.layers};
}

absl::StatusOr<StandInCall> StandInWorker::Open(const StandInContext& context, const Piece& piece,
                                                Lease* lease,
                                                std::vector<v1::ChunkIdentity>* resident) {
  v1::LeaseRequest open;
  open.mutable_open()->set_epoch(epoch_);
  open.mutable_open()->set_app_id(app_id_);
  open.mutable_open()->set_context_id(context.id);
  open.mutable_open()->set_call_id(++last_call_);
  open.mutable_open()->set_level_percent(kLevelPercent);
  open.mutable_open()->set_prompt_tokens(piece.prompt_tokens);
  const int64_t begin = Clock::Real().SteadyNanos();
  WITHY_RETURN_IF_ERROR(lease->Send(open));
  WITHY_ASSIGN_OR_RETURN(const v1::LeaseEvent event, lease->Receive());
  std::vector<v1::ResidentChunk> chunks(event.opened().resident().begin(),
                                        event.opened().resident().end());
  StandInCall call{.context_tokens = context.tokens()};
  WITHY_ASSIGN_OR_RETURN(const Arrival arrival, AwaitArrival(piece, lease, &chunks));
  call.recomputed_chunks = arrival.recomputed_chunks;
  call.load_ms = Millis(arrival.there_ns - begin);
  if (arrival.computed_piece) {
    call.piece_ms = Millis(Clock::Real().SteadyNanos() - begin);
    if (arrival.claimed.has_claimed()) WITHY_RETURN_IF_ERROR(TakeClaimed(arrival.claimed));
  }
  for (const v1::ResidentChunk& chunk : chunks) {
    call.resident_tokens += chunk.identity().tokens();
    resident->push_back(chunk.identity());
  }
  return call;
}

absl::StatusOr<StandInWorker::Arrival> StandInWorker::AwaitArrival(
    const Piece& piece, Lease* lease, std::vector<v1::ResidentChunk>* resident) {
  const bool loads = std::any_of(
      resident->begin(), resident->end(),
      [](const v1::ResidentChunk& chunk) { return chunk.state() == v1::CHUNK_STATE_READING; });
  Arrival arrival{.computed_piece = loads && piece.prompt_tokens > 0};
  const ChunkRange range =
      ChunksOf(static_cast<uint32_t>(resident->size()), piece.keep_tokens, piece.prompt_tokens);
  const bool claims = arrival.computed_piece && range.count > 0;
  Progress progress(*resident, static_cast<uint32_t>(geometry_.layers), arrival.computed_piece,
                    claims);
  std::thread reader;
  if (loads) {
    if (claims) (void)lease->Write(ClaimOf(range));  // the reader sees what is wrong
    reader = std::thread([&] {
      for (bool more = true; more;) {
        const absl::StatusOr<v1::LeaseEvent> event = lease->Receive();
        if (!event.ok()) return progress.Fail(event.status());
        more = progress.Handle(*event);
      }
    });
  }
  uint32_t computed_before = 0;
  int64_t computed_ns = Clock::Real().SteadyNanos();
  while (!progress.over()) {
    if (const uint32_t chunks = progress.ToAskFor(); chunks > 0) {
      v1::LeaseRequest more;
      more.mutable_yield()->set_computed_before(computed_before);
      more.mutable_yield()->set_chunks(chunks);
      (void)lease->Write(more);
    }
    if (progress.BeginLayer()) work_.Run(piece.layer_ms);
    for (const v1::ChunkSlot& chunk : progress.NextPiece()) {
      work_.Run(recompute_.Ms(chunk.chunk() * kTokensPerChunk, kTokensPerChunk));
      WriteChunk(chunk.units(), kTokensPerChunk);
      computed_before = chunk.chunk() + 1;
      ++arrival.recomputed_chunks;
      computed_ns = Clock::Real().SteadyNanos();
    }
  }
  arrival.there_ns = std::max(computed_ns, progress.loaded_ns());
  if (reader.joinable()) reader.join();
  arrival.claimed = progress.claimed();
  if (!arrival.claimed.claimed().refused().empty()) {
    arrival.computed_piece = false;  // what is read has taken the room: it is asked for again
  } else if (arrival.computed_piece) {
    work_.Run(progress.layers_left() * piece.layer_ms);
  }
  WITHY_RETURN_IF_ERROR(progress.status());
  if (progress.failed() < resident->size()) {
    if (arrival.computed_piece) {
      return absl::DataLossError(absl::StrCat("chunk ", progress.failed(), " could not be read"));
    }
    resident->resize(progress.failed());
  }
  return arrival;
}

double StandInWorker::TimePiece(uint32_t tokens, uint32_t prompt_tokens) {
  const Piece piece = PieceOf(tokens, prompt_tokens);
  const int64_t begin = Clock::Real().SteadyNanos();
  for (int layer = 0; layer < geometry_.layers; ++layer) work_.Run(piece.layer_ms);
  return Millis(Clock::Real().SteadyNanos() - begin);
}

double StandInWorker::TimeRecompute(uint32_t tokens) {
  const int64_t begin = Clock::Real().SteadyNanos();
  for (uint32_t first = 0; first < tokens; first += kTokensPerChunk) {
    work_.Run(recompute_.Ms(first, std::min(kTokensPerChunk, tokens - first)));
  }
  return Millis(Clock::Real().SteadyNanos() - begin);
}

absl::StatusOr<StandInCall> StandInWorker::Load(const StandInContext& context) {
  Lease lease(*stub_);
  std::vector<v1::ChunkIdentity> resident;
  return Open(context, /*piece=*/{}, &lease, &resident);
}

absl::Status StandInWorker::Claim(uint32_t first, uint32_t count, Lease* lease, double* claim_ms) {
  const int64_t begin = Clock::Real().SteadyNanos();
  WITHY_RETURN_IF_ERROR(lease->Send(ClaimOf({.first = first, .count = count})));
  WITHY_ASSIGN_OR_RETURN(const v1::LeaseEvent claimed, lease->ReceiveAnswer());
  *claim_ms = Millis(Clock::Real().SteadyNanos() - begin);
  return TakeClaimed(claimed);
}

// Writes KV into the chunks of an answer to a claim.
absl::Status StandInWorker::TakeClaimed(const v1::LeaseEvent& claimed) {
  if (!claimed.claimed().refused().empty()) {
    return absl::ResourceExhaustedError(claimed.claimed().refused());
  }
  for (const v1::ChunkSlot& slot : claimed.claimed().chunks()) {
    WriteChunk(slot.units(), kTokensPerChunk);
  }
  return absl::OkStatus();
}

absl::StatusOr<StandInCall> StandInWorker::Call(StandInContext* context, uint32_t keep_tokens,
                                                uint32_t delta_tokens, StandInPrompt prompt) {
  const bool behind_layers = prompt == StandInPrompt::kBehindLayers;
  const Piece piece = behind_layers ? PieceOf(keep_tokens, delta_tokens) : Piece();
  Lease lease(*stub_);
  std::vector<v1::ChunkIdentity> chunks;
  WITHY_ASSIGN_OR_RETURN(StandInCall call, Open(*context, piece, &lease, &chunks));
  const uint32_t tokens = keep_tokens + delta_tokens;
  const auto [first, count] =
      ChunksOf(static_cast<uint32_t>(chunks.size()), keep_tokens, delta_tokens);
  chunks.resize(first);
  if (count > 0 && call.piece_ms == 0) {
    WITHY_RETURN_IF_ERROR(Claim(first, count, &lease, &call.claim_ms));
  }
  if (!chunks.empty() && chunks.back().tokens() < kTokensPerChunk) {
    chunks.back() = NewIdentity(std::min(kTokensPerChunk, tokens - (first - 1) * kTokensPerChunk));
  }
  while (chunks.size() < ChunksFor(tokens)) {
    const auto before = static_cast<uint32_t>(chunks.size()) * kTokensPerChunk;
    chunks.push_back(NewIdentity(std::min(kTokensPerChunk, tokens - before)));
  }
  v1::LeaseRequest commit;
  for (const v1::ChunkIdentity& chunk : chunks) *commit.mutable_commit()->add_chunks() = chunk;
  v1::Segment* text = commit.mutable_commit()->add_appended();
  text->set_role("user");
  text->set_text(std::string(size_t{delta_tokens} * kBytesPerToken, 't'));
  commit.mutable_commit()->set_context_tokens(tokens);
  WITHY_RETURN_IF_ERROR(lease.Send(commit));
  WITHY_ASSIGN_OR_RETURN(const v1::LeaseEvent committed, lease.ReceiveAnswer());
  WITHY_RETURN_IF_ERROR(lease.End());
  if (!committed.has_committed()) return absl::InternalError("context_store did not commit");
  context->chunks = std::move(chunks);
  return call;
}

}  // namespace withy::bench
