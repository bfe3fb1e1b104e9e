// Tests of the shared server plumbing with the real contract: health, single instance, streaming,
// cancellation, statuses.
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/server.h"
#include "rpc/status.h"
#include "rpc/write_queue.h"
#include "withy/v1/model_worker.grpc.pb.h"

namespace withy::rpc {
namespace {

using ::testing::HasSubstr;

// Streams deltas until it has sent `count` or the client is gone.
class StreamingService final : public v1::ModelWorker::CallbackService {
 public:
  explicit StreamingService(int count) : count_(count) {}
  ~StreamingService() override {
    if (producer_.joinable()) producer_.join();
  }

  grpc::ServerWriteReactor<v1::RunResponse>* Run(grpc::CallbackServerContext* /*context*/,
                                                 const v1::RunRequest* /*request*/) override {
    auto queue = WriteQueue<v1::RunResponse>::Create();
    queue->OnCancelled([this] { cancelled_.Notify(); });
    producer_ = std::thread([this, queue] {
      for (int i = 0; i < count_; ++i) {
        v1::RunResponse response;
        response.mutable_delta()->set_text(std::to_string(i));
        if (!queue->Push(std::move(response))) break;
      }
      queue->Close(absl::OutOfRangeError("the end"));
    });
    return queue->reactor();
  }

  void WaitUntilCancelled() { cancelled_.WaitForNotification(); }

 private:
  const int count_;
  std::thread producer_;
  absl::Notification cancelled_;
};

class RpcTest : public ::testing::Test {
 protected:
  RpcTest() {
    char pattern[] = "/tmp/withy-rpc-XXXXXX";
    dir_ = mkdtemp(pattern);
    address_ = "unix:" + dir_ + "/s.sock";
  }
  ~RpcTest() override { std::filesystem::remove_all(dir_); }

  std::string dir_, address_;
};

TEST_F(RpcTest, StreamsEverythingInOrderAndEndsWithTheStatus) {
  StreamingService service(1000);
  auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::ModelWorker::NewStub(Connect(address_));
  grpc::ClientContext context;
  SetTimeout(&context, absl::Seconds(30));
  auto reader = stub->Run(&context, v1::RunRequest());
  v1::RunResponse response;
  int next = 0;
  while (reader->Read(&response)) EXPECT_EQ(response.delta().text(), std::to_string(next++));
  EXPECT_EQ(next, 1000);
  const absl::Status status = FromGrpc(reader->Finish());
  EXPECT_EQ(status, absl::OutOfRangeError("the end"));
}

TEST_F(RpcTest, ACancelledClientStopsTheProducer) {
  StreamingService service(1 << 30);
  auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::ModelWorker::NewStub(Connect(address_));
  grpc::ClientContext context;
  auto reader = stub->Run(&context, v1::RunRequest());
  v1::RunResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  service.WaitUntilCancelled();
}

TEST_F(RpcTest, ASecondInstanceIsRefusedAndADeadOnesSocketIsTakenOver) {
  StreamingService service(1);
  auto first = Server::Start({.name = "model_worker", .listen = {address_}}, {&service});
  ASSERT_TRUE(first.ok()) << first.status();
  StreamingService other(1);
  auto second = Server::Start({.name = "model_worker", .listen = {address_}}, {&other});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(dir_ + "/s.sock"));
  first->reset();
  auto third = Server::Start({.name = "model_worker", .listen = {address_}}, {&other});
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST_F(RpcTest, ATakenPortIsNamed) {
  StreamingService service(1), other(1);
  auto first = Server::Start({.name = "a", .listen = {"127.0.0.1:0"}}, {&service});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = (*first)->addresses()[0];
  auto second = Server::Start({.name = "b", .listen = {taken}}, {&other});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(taken));
}

TEST_F(RpcTest, ATooLongSocketPathIsRefusedWithTheLimit) {
  StreamingService service(1);
  auto server = Server::Start(
      {.name = "a", .listen = {"unix:" + dir_ + "/" + std::string(200, 'x')}}, {&service});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("107"));
}

TEST(Status, SurvivesTheWireBothWays) {
  const absl::Status status = absl::ResourceExhaustedError("queue is full");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_EQ(RetryAfterMs(WithRetryAfter(status, 250)), 250);
  EXPECT_EQ(RetryAfterMs(status), std::nullopt);
}

}  // namespace
}  // namespace withy::rpc
