// Tests how Lease streams end: the service on a real gRPC server, with the test's own pool and
// store.
#include "context_store/lease/lease_reactor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "context_store/service.h"
#include "context_store/testing.h"
#include "rpc/channel.h"
#include "rpc/server.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::context_store {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

// The next lease in line for a context. It is granted while the lease before it is being released.
class NextInLine final : public LeaseListener {
 public:
  void OnGranted() override {
    // Only a client that is notified too early takes less than this.
    early = told.WaitForNotificationWithTimeout(absl::Milliseconds(300));
  }
  void OnLoad(LoadEvent) override {}
  void OnClaimed(std::vector<ChunkSlot>, std::string) override {}
  void OnEnded(const absl::Status&) override {}

  absl::Notification told;  // the previous lease's client has been notified of the end
  std::atomic<bool> early{true};
};

class LeaseReactorTest : public ::testing::Test {
 protected:
  static constexpr size_t kQueueLimit = 1;

  LeaseReactorTest() {
    StoreOptions options;
    options.db.path = dir_ / "db";
    options.arena_bytes = 1 << 20;
    store_ = *Store::Open(std::move(options), Clock::Real(), *recorder_);
    const BoundApp app = *store_->apps().Bind("mail", "");
    app_id_ = app.app_id;
    context_id_ = store_->contexts().Create(app_id_, {})->context_id;
    Geometry geometry{std::string(32, 'm'), 2, 1, 16, 0};
    geometry.block_bytes = static_cast<uint32_t>(geometry.kv().BlockBytes(KvFormat::kQ8));
    epoch_ = store_->arena_keeper().Attach(5, geometry)->epoch;
    // A live worker: slots of its broken leases stay quarantined.
    EXPECT_TRUE(store_->arena_keeper().ConnectWorker(5, epoch_, getpid()).ok());
    pool_ = std::make_unique<WorkPool>(1, kQueueLimit, Clock::Real());
    service_ = std::make_unique<ContextStoreService>(*store_, *pool_, "");
    const std::string address = "unix:" + (dir_ / "store.sock");
    server_ = *rpc::Server::Start({.name = "store", .listen = {address}}, {service_.get()});
    stub_ = v1::ContextStore::NewStub(rpc::Connect(address));
    rpc::SetTimeout(&client_, kLimit);
  }
  ~LeaseReactorTest() override { client_.TryCancel(); }

  // Opens a lease and claims a chunk.
  void OpenAndClaim(const std::string& context_id) {
    stream_ = stub_->Lease(&client_);
    v1::LeaseRequest request;
    request.mutable_open()->set_epoch(epoch_);
    request.mutable_open()->set_app_id(app_id_);
    request.mutable_open()->set_context_id(context_id);
    stream_->Write(request);
    v1::LeaseEvent event;
    ASSERT_TRUE(stream_->Read(&event) && event.has_opened());
    request.mutable_claim()->set_chunks(1);
    stream_->Write(request);
    ASSERT_TRUE(stream_->Read(&event) && event.has_claimed());
  }

  TempDir dir_;
  std::unique_ptr<telemetry::Recorder> recorder_ = telemetry::Recorder::Disabled();
  std::string app_id_;
  std::string context_id_;
  uint64_t epoch_ = 0;
  std::unique_ptr<Store> store_;
  absl::Notification busy_, go_;  // for the pool's tasks
  std::unique_ptr<WorkPool> pool_;
  std::unique_ptr<ContextStoreService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::ContextStore::Stub> stub_;
  grpc::ClientContext client_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LeaseRequest, v1::LeaseEvent>> stream_;
};

// A client may delete or reopen the context as soon as it is notified of the end.
TEST_F(LeaseReactorTest, TheEndIsToldWhenTheLeaseIsOver) {
  OpenAndClaim(context_id_);
  const auto next = std::make_shared<NextInLine>();
  ASSERT_TRUE(store_->leases().Open({epoch_, app_id_, context_id_, 2}, next).ok());
  v1::LeaseRequest gap;
  gap.mutable_claim()->set_first_chunk(7);
  gap.mutable_claim()->set_chunks(1);
  stream_->Write(gap);
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  next->told.Notify();
  EXPECT_FALSE(next->early);
}

TEST_F(LeaseReactorTest, ACommitThatFindsThePoolFullGivesItsBlocksBack) {
  OpenAndClaim("");
  ASSERT_GT(store_->Stats().space.claimed, 0u);
  const auto wait = [this] { EXPECT_TRUE(go_.WaitForNotificationWithTimeout(kLimit)); };
  ASSERT_TRUE(pool_->TryRun([this, wait] {
    busy_.Notify();
    wait();
  }));
  ASSERT_TRUE(busy_.WaitForNotificationWithTimeout(kLimit));
  ASSERT_TRUE(pool_->TryRun(wait));
  v1::LeaseRequest request;
  request.mutable_commit();
  stream_->Write(request);
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  go_.Notify();
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.leases_open, 0u);
  EXPECT_EQ(stats.space.free, stats.space.total) << stats.space.quarantined << " quarantined";
}

}  // namespace
}  // namespace withy::context_store
