#include "store_client/lease_client.h"

#include <grpcpp/client_context.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "store_client/arena.h"
#include "store_client/lease_stream.h"
#include "store_client/outcome_wire.h"
#include "wire/wire.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::store_client {
namespace {

constexpr absl::Duration kRpcTimeout = absl::Seconds(5);
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr absl::Duration kLastRetry = absl::Seconds(1);

absl::Status Away() {
  return absl::UnavailableError("context_store is away: retry when it is back");
}

}  // namespace

class LeaseClient::Impl {
 public:
  Impl(LeaseClientOptions options, const engine::Tokenizer& tokenizer)
      : options_(std::move(options)),
        tokenizer_(tokenizer),
        instance_(RandomId64()),
        stub_(v1::ContextStore::NewStub(rpc::Connect(options_.store_address))),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        window_(options_.window) {}

  ~Impl() {
    Stop();
    CancelStreams();
  }

  void Start(Callbacks callbacks) {
    callbacks_ = std::move(callbacks);
    thread_ = std::thread([this] { Run(); });
  }

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  absl::StatusOr<std::shared_ptr<serving::Lease>> Open(
      serving::LeaseOpen open, std::shared_ptr<serving::LeaseEvents> events) {
    v1::LeaseOpen wire;
    wire.set_app_id(open.app_id);
    wire.set_context_id(open.context_id);
    wire.set_call_id(open.call_id);
    wire.set_rebuild(open.rebuild);
    wire.set_claim_chunks(static_cast<uint32_t>(open.claim_chunks));
    wire.set_request_id(open.request_id);
    wire.set_request_digest(open.request_digest);
    wire.set_level_percent(static_cast<uint32_t>(open.level_percent));
    wire.set_prompt_tokens(static_cast<uint32_t>(open.prompt_tokens));
    wire.set_need_tokens(static_cast<uint32_t>(open.need_tokens));
    absl::MutexLock lock(&mutex_);
    if (arena_ == nullptr) return Away();
    wire.set_epoch(arena_->epoch());
    const uint64_t number = ++stream_number_;
    LeaseStream::Context context = {
        .arena = arena_,
        .on_done = [this, number](const absl::Status& status) { StreamDone(number, status); },
        .to_wire =
            [this](const serving::LeaseCommit& commit) {
              return ToWire(commit, tokenizer_, options_.model_name);
            }};
    std::shared_ptr<LeaseStream> stream;
    std::shared_ptr<serving::Lease> lease =
        LeaseStream::Open(*stub_, wire, std::move(events), std::move(context), &stream);
    streams_.emplace(number, std::move(stream));
    return lease;
  }

  absl::StatusOr<ContextInfo> GetContext(const v1::StoreGetContextRequest& request) {
    v1::ReadContextResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kRpcTimeout);
    const grpc::Status status = stub_->ReadContext(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return Away();
    if (!status.ok()) return rpc::FromGrpc(status);
    ContextInfo info;
    info.kv_tokens = static_cast<int32_t>(response.context().kv_tokens());
    info.dropped_messages = static_cast<int32_t>(response.context().dropped_messages());
    for (const v1::Segment& segment : response.segments()) {
      info.segments.push_back(engine::SegmentFromWire(segment));
    }
    return info;
  }

  absl::StatusOr<Upgrade> NextUpgrade() {
    v1::NextUpgradeResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kRpcTimeout);
    const grpc::Status status = stub_->NextUpgrade(&context, v1::NextUpgradeRequest(), &response);
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return Away();
    if (!status.ok()) return rpc::FromGrpc(status);
    return Upgrade{response.app_id(), response.context_id(),
                   static_cast<int32_t>(response.model_level_percent())};
  }

  std::string Describe() const {
    absl::MutexLock lock(&mutex_);
    if (arena_ == nullptr) {
      return absl::StrCat("waits for context_store at ", options_.store_address);
    }
    return absl::StrCat("attached to context_store, epoch ", arena_->epoch(), ", ",
                        arena_->memory().bytes >> 20, " MiB");
  }

  int32_t arena_chunks() const {
    absl::MutexLock lock(&mutex_);
    return arena_ == nullptr ? 0 : ChunksIn(arena_->memory().bytes);
  }

 private:
  void Run() {
    absl::Duration retry = kFirstRetry;
    absl::Status last_error;
    while (!stopping()) {
      const absl::StatusOr<UniqueFd> socket = Attach();
      if (!socket.ok()) {
        if (socket.status() != last_error) {
          spdlog::info("context_store at {}: {}", options_.store_address,
                       std::string(socket.status().message()));
        }
        last_error = socket.status();
        WaitFor(-1, retry);
        retry = std::min(2 * retry, kLastRetry);
        continue;
      }
      retry = kFirstRetry;
      last_error = absl::OkStatus();
      spdlog::info("model_worker {}", Describe());
      callbacks_.on_change(true);
      WatchStore(socket->get());
      Detach();
    }
  }

  bool stopping() const {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  }

  absl::StatusOr<UniqueFd> Attach() {
    v1::AttachRequest request;
    request.set_model_id(options_.model_id.data(), options_.model_id.size());
    request.set_layers(static_cast<uint32_t>(options_.kv.layers));
    request.set_kv_heads(static_cast<uint32_t>(options_.kv.kv_heads));
    request.set_head_dim(static_cast<uint32_t>(options_.kv.head_dim));
    request.set_block_bytes(static_cast<uint32_t>(options_.kv.block_bytes));
    request.set_window_reach(static_cast<uint32_t>(options_.kv.window_reach));
    for (int layer = 0; layer < options_.kv.layers; ++layer) {
      if (options_.kv.windowed.Has(layer))
        request.add_windowed_layers(static_cast<uint32_t>(layer));
    }
    request.set_pid(::getpid());
    request.set_worker_instance(instance_);
    *request.mutable_kv_costs() = options_.kv_costs;
    for (const serving::Identity& chunk : options_.public_chunks) {
      request.add_public_chunks(chunk.data(), chunk.size());
    }
    v1::AttachResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kRpcTimeout);
    const grpc::Status status = stub_->Attach(&context, request, &response);
    if (!status.ok()) return Annotate(rpc::FromGrpc(status), "attach");
    WITHY_ASSIGN_OR_RETURN(ArenaConnection connection,
                           ConnectArena(response.arena_socket(),
                                        {.worker_instance = instance_, .epoch = response.epoch()},
                                        static_cast<uint32_t>(options_.kv.block_bytes)));
    LimitWindow(connection.arena->memory().bytes);
    absl::MutexLock lock(&mutex_);
    arena_ = std::move(connection.arena);
    return std::move(connection.socket);
  }

  int32_t ChunksIn(uint64_t arena_bytes) const {
    const engine::KvGeometry kv{.layers = options_.kv.layers,
                                .kv_heads = options_.kv.kv_heads,
                                .head_dim = options_.kv.head_dim};
    constexpr uint64_t kMost = INT32_MAX / engine::kChunkTokens;
    return static_cast<int32_t>(
        std::min(arena_bytes / kv.ChunkBytes(engine::KvFormat::kQ8), kMost));
  }

  void LimitWindow(uint64_t arena_bytes) {
    const int32_t holds = ChunksIn(arena_bytes) * engine::kChunkTokens;
    const int32_t before = window_;
    window_.Limit(holds);
    if (window_ == before || window_ == window_.configured()) return;
    const double bytes_per_token = static_cast<double>(arena_bytes) / holds;
    spdlog::warn(
        "the window is {} tokens and not {}: the KV arena of {} MiB holds no more; "
        "store.arena_bytes: {:.0f} holds them all",
        int32_t{window_}, window_.configured(), arena_bytes >> 20,
        std::ceil(bytes_per_token * window_.configured() / (1 << 20)) * (1 << 20));
  }

  // Returns when the store is gone, our epoch is over, or the client stops.
  void WatchStore(int socket) {
    while (!stopping()) {
      if (WaitFor(socket, absl::InfiniteDuration())) return;
      if (TakeSuspicion() && !EpochIsOurs()) return;
    }
  }

  // True when `socket` has become readable, which a silent connection does only when it ends.
  bool WaitFor(int socket, absl::Duration timeout) {
    pollfd polled[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                        {.fd = socket, .events = POLLIN, .revents = 0}};
    const int timeout_ms = timeout == absl::InfiniteDuration()
                               ? -1
                               : static_cast<int>(absl::ToInt64Milliseconds(timeout));
    ::poll(polled, socket >= 0 ? 2 : 1, timeout_ms);
    uint64_t count = 0;
    if (polled[0].revents != 0 && ::read(wake_.get(), &count, sizeof(count)) < 0) return false;
    return socket >= 0 && polled[1].revents != 0;
  }

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  bool TakeSuspicion() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(suspicious_, false);
  }

  bool EpochIsOurs() {
    v1::GetStoreInfoResponse info;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kRpcTimeout);
    const grpc::Status status = stub_->GetStoreInfo(&context, v1::GetStoreInfoRequest(), &info);
    absl::MutexLock lock(&mutex_);
    return status.ok() && arena_ != nullptr && info.epoch() == arena_->epoch();
  }

  void Detach() {
    {
      absl::MutexLock lock(&mutex_);
      arena_ = nullptr;
    }
    if (stopping()) return;
    spdlog::warn("context_store is gone; model_worker attaches anew when it is back");
    callbacks_.on_change(false);
    CancelStreams();
    callbacks_.release_blocks(Away());
  }

  // Returns when no stream is left.
  void CancelStreams() {
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return streams_.empty(); };
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, weak] : streams_) {
      if (const auto stream = weak.lock()) stream->Cancel();
    }
    mutex_.Await(absl::Condition(&none));
  }

  void StreamDone(uint64_t number, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(number);
    if (!absl::IsAborted(status)) return;
    suspicious_ = true;
    Wake();  // under the lock: with the last stream gone the destructor goes on
  }

  const LeaseClientOptions options_;
  const engine::Tokenizer& tokenizer_;
  const uint64_t instance_;
  const std::unique_ptr<v1::ContextStore::Stub> stub_;
  const UniqueFd wake_;
  serving::ServedWindow window_;
  Callbacks callbacks_;

  mutable absl::Mutex mutex_;
  // Shared with leases and their sessions: a step may use a mapping until release_blocks has
  // returned.
  std::shared_ptr<const serving::Arena> arena_ ABSL_GUARDED_BY(mutex_);
  // Those that gRPC is not done with. They keep themselves.
  std::map<uint64_t, std::weak_ptr<LeaseStream>> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t stream_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool suspicious_ ABSL_GUARDED_BY(mutex_) = false;  // a lease said that our epoch may be over
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

LeaseClient::LeaseClient(LeaseClientOptions options, const engine::Tokenizer& tokenizer)
    : impl_(std::make_unique<Impl>(std::move(options), tokenizer)) {}
LeaseClient::~LeaseClient() = default;

void LeaseClient::Start(Callbacks callbacks) { impl_->Start(std::move(callbacks)); }
void LeaseClient::Stop() { impl_->Stop(); }

absl::StatusOr<std::shared_ptr<serving::Lease>> LeaseClient::Open(
    serving::LeaseOpen open, std::shared_ptr<serving::LeaseEvents> events) {
  return impl_->Open(std::move(open), std::move(events));
}

absl::StatusOr<ContextInfo> LeaseClient::GetContext(const v1::StoreGetContextRequest& request) {
  return impl_->GetContext(request);
}

absl::StatusOr<LeaseClient::Upgrade> LeaseClient::NextUpgrade() { return impl_->NextUpgrade(); }

int32_t LeaseClient::arena_chunks() const { return impl_->arena_chunks(); }

std::string LeaseClient::Describe() const { return impl_->Describe(); }

}  // namespace withy::store_client
