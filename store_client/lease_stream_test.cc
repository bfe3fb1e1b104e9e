// One Lease stream against a store that ends it at any moment.
#include "store_client/lease_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/model/testing.h"
#include "rpc/channel.h"
#include "rpc/server.h"
#include "serving/call/testing.h"

namespace withy::store_client {
namespace {

using Stream = grpc::ServerReaderWriter<v1::LeaseEvent, v1::LeaseRequest>;

void AnswerOpen(Stream* stream) {
  v1::LeaseRequest open;
  stream->Read(&open);
  v1::LeaseEvent event;
  event.mutable_opened();
  stream->Write(event);
}

// Opens every lease and ends it after a while.
class EndingStore final : public v1::ContextStore::Service {
 public:
  std::atomic<int> end_after_us{0};

 private:
  grpc::Status Lease(grpc::ServerContext* /*context*/, Stream* stream) override {
    AnswerOpen(stream);
    std::this_thread::sleep_for(std::chrono::microseconds(end_after_us.load()));
    return {grpc::StatusCode::ABORTED, "over"};
  }
};

// Opens every lease and writes down what it is sent until the worker has sent all.
class ListeningStore final : public v1::ContextStore::Service {
 public:
  std::vector<v1::LeaseRequest::StepCase> heard() {
    absl::MutexLock lock(&mutex_);
    return heard_;
  }

 private:
  grpc::Status Lease(grpc::ServerContext* /*context*/, Stream* stream) override {
    AnswerOpen(stream);
    v1::LeaseRequest request;
    while (stream->Read(&request)) {
      absl::MutexLock lock(&mutex_);
      heard_.push_back(request.step_case());
    }
    return grpc::Status::OK;
  }
  absl::Mutex mutex_;
  std::vector<v1::LeaseRequest::StepCase> heard_ ABSL_GUARDED_BY(mutex_);
};

class QuietEvents final : public serving::LeaseEvents {
 public:
  void OnOpened(std::shared_ptr<serving::Lease>, serving::OpenedLease) override {}
  void OnLoad(serving::LoadEvent) override {}
  void OnShared(std::vector<serving::ResidentChunk>) override {}
  void OnClaimed(std::vector<serving::ChunkSlot>, std::string) override {}
  void OnCommitted() override {}
  void OnBroken(absl::Status) override {}
};

// The engine's thread asks for blocks while the stream ends: gRPC must neither be written to after
// the end nor told of it twice.
TEST(LeaseStreamTest, ClaimsBesideTheEnd) {
  const engine::TestFolder folder;
  EndingStore store;
  const std::string address = "unix:" + (folder / "store.sock");
  auto server = rpc::Server::Start({.name = "store", .listen = {address}}, {&store});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::ContextStore::NewStub(rpc::Connect(address));
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    store.end_after_us = static_cast<int>(random() % 300);
    const int pause = static_cast<int>(random() % 40);
    const auto ends = std::make_shared<std::atomic<int>>(0);
    const std::shared_ptr<serving::Lease> lease = LeaseStream::Open(
        *stub, {}, std::make_shared<QuietEvents>(),
        {.arena = nullptr, .on_done = [ends](const absl::Status&) { ++*ends; }, .to_wire = nullptr},
        nullptr);
    ASSERT_TRUE(serving::Eventually([&] {
      lease->Claim(0, 1);
      for (int i = 0; i < pause; ++i) std::this_thread::yield();
      return *ends > 0;
    })) << "round "
        << round;
    ASSERT_EQ(*ends, 1);
  }
}

// A call that fails gives its blocks back at once, though another thread still holds its lease and
// may ask for more.
TEST(LeaseStreamTest, NothingFollowsAnAbort) {
  const engine::TestFolder folder;
  ListeningStore store;
  const std::string address = "unix:" + (folder / "store.sock");
  auto server = rpc::Server::Start({.name = "store", .listen = {address}}, {&store});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::ContextStore::NewStub(rpc::Connect(address));
  std::vector<v1::LeaseRequest::StepCase> expected;
  for (int round = 0; round < 50; ++round) {  // before and after the opening comes
    const auto ends = std::make_shared<std::atomic<int>>(0);
    const std::shared_ptr<serving::Lease> lease = LeaseStream::Open(
        *stub, {}, std::make_shared<QuietEvents>(),
        {.arena = nullptr, .on_done = [ends](const absl::Status&) { ++*ends; }, .to_wire = nullptr},
        nullptr);
    std::this_thread::sleep_for(std::chrono::microseconds(40 * round));
    lease->Abort();
    lease->Claim(0, 1);
    lease->Abort();
    expected.push_back(v1::LeaseRequest::kAbort);
    ASSERT_TRUE(serving::Eventually([&] { return *ends > 0; })) << "round " << round;
    ASSERT_EQ(store.heard(), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace withy::store_client
