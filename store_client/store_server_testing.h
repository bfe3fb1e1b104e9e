// A context store for the service test: the real wire (gRPC, side socket, memfd), with one context
// in memory and no disk.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/arena_socket.h"
#include "base/fd_passing.h"
#include "base/shared_memory.h"
#include "rpc/server.h"
#include "serving/call/testing.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::store_client {

// Serves from construction to destruction; destroying it is what a crash of the store looks like to
// the worker.
class FakeStoreServer final : private v1::ContextStore::Service {
 public:
  static constexpr uint32_t kChunks = 1024;

  FakeStoreServer(const std::string& directory, uint64_t first_epoch)
      : socket_path_(directory + "/arena.sock"), epoch_(first_epoch) {
    ListenArena();
    auto server = rpc::Server::Start(
        {.name = "fake_store", .listen = {"unix:" + directory + "/store.sock"}}, {this});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->SetServing(true);
  }
  ~FakeStoreServer() override {
    Hold({});
    server_->Shutdown(absl::ZeroDuration());
    ::shutdown(listener_.get(), SHUT_RDWR);
    side_thread_.join();
    ::unlink(socket_path_.c_str());
  }

  // What the store does not answer until the next Hold. Openings: those of contexts.
  struct Held {
    bool openings = false;
    bool commits = false;
  };
  void Hold(Held held) {
    absl::MutexLock lock(&mutex_);
    hold_ = held;
  }
  // How leases have come and gone.
  struct Leases {
    int opening = 0;  // held now
    int aborted = 0;
    int broken = 0;      // ended without commit or abort
    int committing = 0;  // held now
    int limited = 0;     // opened with a deadline
  };
  Leases leases() {
    absl::MutexLock lock(&mutex_);
    return leases_;
  }

  // Waits for the commit of this number, and returns it; fails the test when it does not come.
  v1::LeaseCommit WaitForCommit(size_t number) {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return commits_.size() > number;
    };
    absl::MutexLock lock(&mutex_);
    const bool came = mutex_.AwaitWithTimeout(absl::Condition(&there), serving::kTestLimit);
    EXPECT_TRUE(came) << "no commit " << number;
    return came ? commits_[number] : v1::LeaseCommit();
  }
  uint64_t epoch() const { return epoch_; }
  const v1::AttachRequest& attached() const { return attach_; }
  // A block of a chunk that was claimed by the last lease.
  const std::byte* Block(uint32_t chunk, int layer) {
    absl::MutexLock lock(&mutex_);
    const engine::KvSlot slot = serving::NthSlot(geometry(), last_lease_->at(chunk));
    return engine::KvMemory{arena_.data(), arena_.size()}.At(slot.Block(geometry(), layer));
  }

 private:
  using Claims = std::map<uint32_t, uint32_t>;  // number of the slot, by chunk

  engine::KvGeometry geometry() const {
    return {static_cast<int>(attach_.layers()), static_cast<int>(attach_.kv_heads()),
            static_cast<int>(attach_.head_dim())};
  }

  grpc::Status Attach(grpc::ServerContext* /*context*/, const v1::AttachRequest* request,
                      v1::AttachResponse* response) override {
    absl::MutexLock lock(&mutex_);
    attach_ = *request;
    const size_t bytes = kChunks * geometry().ChunkBytes(engine::KvFormat::kQ8);
    auto memfd = CreateSealedMemfd("fake arena", bytes);
    EXPECT_TRUE(memfd.ok()) << memfd.status();
    memfd_ = *std::move(memfd);
    arena_ = *SharedMemory::Map(memfd_.get(), bytes, SharedMemory::Access::kReadWrite);
    response->set_epoch(++epoch_);
    response->set_arena_bytes(bytes);
    response->set_arena_socket(socket_path_);
    return grpc::Status::OK;
  }

  grpc::Status Lease(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<v1::LeaseEvent, v1::LeaseRequest>* stream) override {
    v1::LeaseRequest request;
    bool keeps = false;
    const auto lease = std::make_shared<Claims>();
    while (stream->Read(&request)) {
      v1::LeaseEvent event;
      absl::MutexLock lock(&mutex_);
      if (request.has_open()) {
        if (request.open().epoch() != epoch_) return {grpc::StatusCode::ABORTED, "stale epoch"};
        if (context->deadline() != std::chrono::system_clock::time_point::max()) ++leases_.limited;
        keeps = !request.open().context_id().empty();
        if (keeps) AwaitLet(hold_.openings, &leases_.opening);
        v1::LeaseOpened* opened = event.mutable_opened();
        if (!request.open().app_id().empty()) last_lease_ = lease;
        if (keeps) opened->mutable_segments()->Add(segments_.begin(), segments_.end());
        if (keeps) opened->mutable_resident()->Add(resident_.begin(), resident_.end());
        v1::LeaseClaim first;
        first.set_chunks(request.open().claim_chunks());
        v1::LeaseClaimed claimed;
        Claim(first, lease.get(), &claimed);
        *opened->mutable_claimed() = claimed.chunks();
      } else if (request.has_begin()) {
        last_lease_ = lease;
        continue;
      } else if (request.has_share()) {
        event.mutable_shared();  // no other context has anything
      } else if (request.has_claim()) {
        Claim(request.claim(), lease.get(), event.mutable_claimed());
      } else if (request.has_commit()) {
        AwaitLet(hold_.commits, &leases_.committing);
        if (keeps) Keep(request.commit(), *lease);
        commits_.push_back(request.commit());
        event.mutable_committed()->set_revision(commits_.size());
      } else {
        ++leases_.aborted;
        return grpc::Status::OK;
      }
      stream->Write(event);
      if (event.has_committed()) return grpc::Status::OK;
    }
    absl::MutexLock lock(&mutex_);
    ++leases_.broken;
    return {grpc::StatusCode::CANCELLED, "broken"};
  }

  grpc::Status ReadContext(grpc::ServerContext* /*context*/,
                           const v1::StoreGetContextRequest* request,
                           v1::ReadContextResponse* response) override {
    if (request->context_id() != "ctx") return {grpc::StatusCode::NOT_FOUND, "no such context"};
    absl::MutexLock lock(&mutex_);
    response->mutable_context()->set_tokens(context_tokens_);
    response->mutable_context()->set_dropped_messages(dropped_);
    for (const v1::Segment& segment : segments_) *response->add_segments() = segment;
    return grpc::Status::OK;
  }

  // Waits while `hold` is set; `*waiting` counts who does.
  void AwaitLet(const bool& hold, int* waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto let = [&] { return !hold; };
    ++*waiting;
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&let), serving::kTestLimit))
        << "held for ever";
    --*waiting;
  }

  void Claim(const v1::LeaseClaim& claim, Claims* lease, v1::LeaseClaimed* claimed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (uint32_t i = 0; i < claim.chunks(); ++i) {
      const uint32_t chunk = claim.first_chunk() + i;
      (*lease)[chunk] = next_slot_++ % kChunks;
      FillSlot(chunk, lease->at(chunk), claimed->add_chunks());
    }
  }

  void FillSlot(uint32_t chunk, uint32_t slot, v1::ChunkSlot* wire) const {
    wire->set_chunk(chunk);
    wire->set_units(serving::NthSlot(geometry(), slot).units);
    wire->set_format(v1::KV_FORMAT_Q8);
  }

  void Keep(const v1::LeaseCommit& commit, const Claims& claims)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    segments_.insert(segments_.end(), commit.appended().begin(), commit.appended().end());
    context_tokens_ = commit.context_tokens();
    dropped_ = commit.dropped_segments();
    const auto chunks = static_cast<size_t>(commit.chunks_size());
    for (uint32_t i = 0; i < chunks; ++i) {
      if (i >= resident_.size()) {
        FillSlot(i, claims.at(i), resident_.emplace_back().mutable_where());
      }
      *resident_[i].mutable_identity() = commit.chunks(static_cast<int>(i));
    }
    resident_.resize(chunks);
  }

  void ListenArena() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ASSERT_LT(socket_path_.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(listener_.get(), 4), 0);
    side_thread_ = std::thread([this] { ServeArena(); });
  }

  void ServeArena() {
    while (true) {
      UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
      if (!peer.valid()) return;
      ArenaHello hello;
      EXPECT_EQ(::recv(peer.get(), &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
      absl::MutexLock lock(&mutex_);
      EXPECT_EQ(hello.worker_instance, attach_.worker_instance());
      const ArenaOffer offer{
          .epoch = hello.epoch, .arena_bytes = arena_.size(), .block_bytes = attach_.block_bytes()};
      EXPECT_TRUE(SendFd(peer.get(), std::as_bytes(std::span(&offer, 1)), memfd_.get()).ok());
      peer_ = std::move(peer);
    }
  }

  const std::string socket_path_;
  uint64_t epoch_;
  v1::AttachRequest attach_;
  UniqueFd memfd_;
  SharedMemory arena_;
  UniqueFd listener_;
  UniqueFd peer_;
  std::thread side_thread_;

  absl::Mutex mutex_;
  std::vector<v1::Segment> segments_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ResidentChunk> resident_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::LeaseCommit> commits_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Claims> last_lease_ ABSL_GUARDED_BY(mutex_);
  Held hold_ ABSL_GUARDED_BY(mutex_);
  Leases leases_ ABSL_GUARDED_BY(mutex_);
  uint32_t context_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t next_slot_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace withy::store_client
