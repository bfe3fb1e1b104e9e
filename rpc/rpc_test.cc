// Tests of the server classes with the real contract: health, single instance, streaming,
// cancellation, statuses.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/listen_address.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/error_reason.h"
#include "rpc/server.h"
#include "rpc/stand_in.h"
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
    auto queue = WriteQueue<v1::RunResponse>::Create(answers_);
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
  OpenStreams answers_;
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

  // HealthCheckResponse.status of a service; none: it is not known. Parsed by hand, because the
  // health contract is no part of gRPC's library.
  std::optional<int> HealthOf(const std::string& service) const {
    grpc::GenericStub health(Connect(address_));
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    constexpr char kServiceField = 10;
    const std::string message =
        service.empty()
            ? ""
            : kServiceField + std::string(1, static_cast<char>(service.size())) + service;
    const grpc::Slice slice(message);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer answer;
    grpc::Status status;
    absl::Notification done;
    health.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request,
                     &answer, [&](const grpc::Status& of_call) {
                       status = of_call;
                       done.Notify();
                     });
    done.WaitForNotification();
    grpc::Slice bytes;
    if (!status.ok() || !answer.DumpToSingleSlice(&bytes).ok() || bytes.size() != 2) {
      return std::nullopt;
    }
    return bytes.begin()[1];
  }

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

// Load balancers and probes ask by the name of a service.
TEST_F(RpcTest, HealthIsToldByServiceName) {
  StreamingService service(0);
  auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string name = "withy.v1.ModelWorker";
  EXPECT_EQ(HealthOf(name), 2) << "NOT_SERVING";
  (*server)->SetServing(true);
  EXPECT_EQ(HealthOf(name), 1) << "SERVING";
  EXPECT_EQ(HealthOf(""), 1);
  EXPECT_EQ(HealthOf("withy.v1.Other"), std::nullopt);
}

TEST_F(RpcTest, AStandInTellsEveryCallerWhy) {
  const auto stand_in = StandIn::Start({.name = "test", .listen = {address_}}, "waits for room");
  ASSERT_TRUE(stand_in.ok()) << stand_in.status();
  const absl::Status refusal = WithReason(
      WithRetryAfter(absl::UnavailableError("waits for room"), 2000), "PROCESS_CANNOT_START");
  const auto channel = Connect(address_);
  auto stub = v1::ModelWorker::NewStub(channel);
  grpc::ClientContext unary;
  SetTimeout(&unary, absl::Seconds(30));
  v1::TokenizeResponse tokens;
  const grpc::Status told = stub->Tokenize(&unary, v1::TokenizeRequest(), &tokens);
  EXPECT_EQ(FromGrpc(told), refusal);
  EXPECT_EQ(unary.GetServerTrailingMetadata().count(kRetryAfterKey), 1u);
  grpc::ClientContext streamed;
  SetTimeout(&streamed, absl::Seconds(30));
  auto reader = stub->Run(&streamed, v1::RunRequest());
  v1::RunResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(FromGrpc(reader->Finish()), refusal);
  EXPECT_EQ(HealthOf(""), 2) << "NOT_SERVING";
  (*stand_in)->SetReason("has gone on");
  grpc::ClientContext later;
  SetTimeout(&later, absl::Seconds(30));
  EXPECT_EQ(stub->Tokenize(&later, v1::TokenizeRequest(), &tokens).error_message(), "has gone on");
}

// gRPC's own threads sleep for 100 ms after a second without events.
TEST_F(RpcTest, AServerThatWasIdleAnswersAtOnce) {
  StreamingService service(0);
  auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::ModelWorker::NewStub(Connect(address_));
  const auto call = [&] {
    const absl::Time start = absl::Now();
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    (void)stub->Tokenize(&context, v1::TokenizeRequest(), &response);  // not implemented
    return absl::Now() - start;
  };
  call();
  constexpr absl::Duration kAtOnce = absl::Milliseconds(30);
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 20 && least >= kAtOnce; ++i) {  // a busy machine takes its time, too
    absl::SleepFor(absl::Milliseconds(1030));
    least = std::min(least, call());
  }
  EXPECT_LT(least, kAtOnce);
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

// Provides write queues that a test fills.
class ManualService final : public v1::ModelWorker::CallbackService {
 public:
  using Queue = WriteQueue<v1::RunResponse>;

  grpc::ServerWriteReactor<v1::RunResponse>* Run(grpc::CallbackServerContext* context,
                                                 const v1::RunRequest* /*request*/) override {
    queue_ = Queue::Create(answers_, context);
    begun_.Notify();
    return queue_->reactor();
  }
  std::shared_ptr<Queue> WaitForCall() {
    begun_.WaitForNotification();
    return queue_;
  }
  const OpenStreams& answers() const { return answers_; }

 private:
  OpenStreams answers_;
  std::shared_ptr<Queue> queue_;
  absl::Notification begun_;
};

// A server that has shut down closes its connection as soon as the last call has ended. Data that
// the client has not read by then is lost, so the end must be sent before.
TEST_F(RpcTest, AnAnswerThatEndsWithItsServerArrives) {
  for (int round = 0; round < 300; ++round) {
    ManualService service;
    auto server = Server::Start(
        {.name = "test", .listen = {address_}, .answers = &service.answers()}, {&service});
    ASSERT_TRUE(server.ok()) << server.status();
    auto stub = v1::ModelWorker::NewStub(Connect(address_));
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    auto reader = stub->Run(&context, v1::RunRequest());
    const auto queue = service.WaitForCall();
    std::thread shutdown([&] { (*server)->Shutdown(absl::Seconds(30)); });
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(queue->Push(v1::RunResponse()));
    queue->Close(absl::OkStatus());
    v1::RunResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    shutdown.join();
  }
}

// Calls that come while a server ends are told to retry, and not that somebody cancelled them.
TEST_F(RpcTest, CallsThatComeWhileAServerEndsAreUnavailable) {
  for (int round = 0; round < 30; ++round) {
    v1::ModelWorker::CallbackService service;
    const OpenStreams answers;
    auto server =
        Server::Start({.name = "test", .listen = {address_}, .answers = &answers}, {&service});
    ASSERT_TRUE(server.ok()) << server.status();
    std::atomic<bool> over = false;
    std::atomic<int> answered = 0;
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        const auto stub = v1::ModelWorker::NewStub(Connect(address_));
        while (!over) {
          grpc::ClientContext context;
          SetTimeout(&context, absl::Seconds(30));
          v1::GetWorkerInfoResponse response;
          const auto code = stub->GetWorkerInfo(&context, {}, &response).error_code();
          answered += code == grpc::StatusCode::UNIMPLEMENTED ? 1 : 0;
          if (code == grpc::StatusCode::UNAVAILABLE) return;
          EXPECT_EQ(code, grpc::StatusCode::UNIMPLEMENTED);
        }
      });
    }
    while (answered < 20) std::this_thread::yield();
    (*server)->Shutdown(absl::Seconds(1));
    server->reset();
    over = true;
    for (std::thread& caller : callers) caller.join();
  }
}

// Clients that find no descriptor free wait; the server goes on once there are some.
TEST_F(RpcTest, AServerOutlivesALackOfDescriptors) {
  v1::ModelWorker::CallbackService service;
  const auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  sockaddr_un path{};
  path.sun_family = AF_UNIX;
  address_.copy(path.sun_path, sizeof path.sun_path - 1, kUnixPrefix.size());
  std::vector<UniqueFd> clients;
  const auto connects = [&] {
    UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int failed = connect(client.get(), reinterpret_cast<sockaddr*>(&path), sizeof path);
    clients.push_back(std::move(client));
    return failed == 0;
  };
  ASSERT_TRUE(connects());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // So many that the server has none for the last of them.
  const rlimit few{static_cast<rlim_t>(clients.back().get()) + 40, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  while (connects()) {
  }
  EXPECT_EQ(errno, EBADF) << "there is no descriptor left";
  absl::SleepFor(absl::Milliseconds(200));  // the server tries in vain
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto stub = v1::ModelWorker::NewStub(Connect(address_));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  SetTimeout(&context, absl::Seconds(30));
  v1::GetWorkerInfoResponse response;
  EXPECT_EQ(stub->GetWorkerInfo(&context, {}, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(RpcTest, AnAbandonedReaderGetsWhatWasSentAndTheReason) {
  ManualService service;
  auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  grpc::ChannelArguments narrow;
  narrow.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  auto stub = v1::ModelWorker::NewStub(
      grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), narrow));
  grpc::ClientContext context;
  SetTimeout(&context, absl::Seconds(60));
  const auto reader = stub->Run(&context, v1::RunRequest());
  const auto queue = service.WaitForCall();
  v1::RunResponse message;
  message.mutable_delta()->set_text(std::string(1000, 'x'));
  int pushed = 0;
  while (queue->WaitForRoom(absl::Milliseconds(100))) {
    ASSERT_LT(pushed, 100'000) << "the queue never fills";
    ASSERT_TRUE(queue->Push(message));
    ++pushed;
  }
  queue->Abandon(absl::ResourceExhaustedError("nobody reads"));
  EXPECT_TRUE(queue->WaitForRoom(absl::InfiniteDuration())) << "ended: nobody waits for it";
  EXPECT_FALSE(queue->Push(message));
  int read = 0;
  while (reader->Read(&message)) ++read;
  EXPECT_LE(read, pushed - static_cast<int>(ManualService::Queue::kLimit) + 1);
  EXPECT_EQ(FromGrpc(reader->Finish()), absl::ResourceExhaustedError("nobody reads"));
}

// Starts several producers per call, which push, wait, close and abandon in random order.
class RacingService final : public v1::ModelWorker::CallbackService {
 public:
  ~RacingService() override {
    for (std::thread& producer : producers_) producer.join();
  }
  grpc::ServerWriteReactor<v1::RunResponse>* Run(grpc::CallbackServerContext* context,
                                                 const v1::RunRequest* request) override {
    const auto queue = WriteQueue<v1::RunResponse>::Create(answers_, context);
    queue->OnCancelled([this] { ++cancelled_; });
    const auto seed = static_cast<unsigned>(request->call_id());
    const absl::MutexLock lock(&mutex_);
    for (unsigned i = 0; i < 3; ++i) {
      producers_.emplace_back([queue, seed, i] { Produce(queue.get(), seed * 3 + i); });
    }
    return queue->reactor();
  }

  int cancelled() const { return cancelled_; }

 private:
  static void Produce(WriteQueue<v1::RunResponse>* queue, unsigned seed) {
    std::mt19937 random(seed);
    v1::RunResponse response;
    const unsigned count = random() % 40;
    for (unsigned i = 0; i < count; ++i) {
      response.mutable_delta()->set_text(std::string(random() % 300, 'x'));
      if (!queue->WaitForRoom(absl::Seconds(10)) || !queue->Push(response)) break;
    }
    if (random() % 4 == 0) {
      queue->Abandon(WithRetryAfter(absl::ResourceExhaustedError("dropped"), 5));
    } else {
      queue->Close(absl::OkStatus());
    }
  }

  OpenStreams answers_;
  absl::Mutex mutex_;
  std::vector<std::thread> producers_;
  std::atomic<int> cancelled_{0};
};

// Ending, cancelling, writing and deadlines meet in every order. gRPC aborts the process if a write
// follows the end or the end comes twice.
TEST_F(RpcTest, EveryOrderOfWritingEndingAndCancellingEndsTheCall) {
  constexpr unsigned kSeed = 77;
  constexpr int kThreads = 4, kCalls = 60;
  RacingService service;
  auto server = Server::Start({.name = "test", .listen = {address_}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::thread> callers;
  for (unsigned t = 0; t < kThreads; ++t) {
    callers.emplace_back([this, t] {
      auto stub = v1::ModelWorker::NewStub(Connect(address_));
      std::mt19937 random(kSeed + t);
      for (unsigned i = 0; i < kCalls; ++i) {
        grpc::ClientContext context;
        SetTimeout(&context,
                   random() % 3 == 0 ? absl::Microseconds(random() % 2000) : absl::Seconds(30));
        v1::RunRequest request;
        request.set_call_id(t * kCalls + i);
        const auto reader = stub->Run(&context, request);
        v1::RunResponse response;
        unsigned left = random() % 60;
        while (reader->Read(&response)) {
          if (left-- == 0) context.TryCancel();
        }
        reader->Finish();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  auto stub = v1::ModelWorker::NewStub(Connect(address_));
  grpc::ClientContext context;
  SetTimeout(&context, absl::Seconds(30));
  const auto reader = stub->Run(&context, v1::RunRequest());
  v1::RunResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::StatusCode last = reader->Finish().error_code();
  EXPECT_GT(service.cancelled(), 0) << "seed " << kSeed;
  EXPECT_TRUE(last == grpc::StatusCode::OK || last == grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "seed " << kSeed;
}

TEST_F(RpcTest, ASecondInstanceIsRefusedAndADeadOnesSocketIsTakenOver) {
  StreamingService service(1);
  auto first = Server::Start({.name = "model_worker", .listen = {address_}}, {&service});
  ASSERT_TRUE(first.ok()) << first.status();
  StreamingService other(1);
  auto second = Server::Start({.name = "model_worker", .listen = {address_}}, {&other});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              ::testing::AllOf(HasSubstr(dir_ + "/s.sock"), HasSubstr("run_dir")));
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

TEST_F(RpcTest, WhatIsNoAddressIsRefusedWithBothForms) {
  StreamingService service(1);
  for (const char* address : {"foo", "127.0.0.1:99999", "unix:relative.sock"}) {
    const absl::Status status =
        Server::Start({.name = "a", .listen = {address}}, {&service}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(
        std::string(status.message()),
        ::testing::AllOf(HasSubstr(address), HasSubstr("unix:/PATH"), HasSubstr("HOST:PORT")));
  }
}

TEST_F(RpcTest, ASocketsDirectoryIsNotMade) {
  StreamingService service(1);
  const absl::Status status =
      Server::Start({.name = "a", .listen = {"unix:" + dir_ + "/no/s.sock"}}, {&service}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir_ + "/no"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/no"));
}

TEST(Status, SurvivesTheWireBothWays) {
  const absl::Status status = absl::ResourceExhaustedError("queue is full");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_EQ(RetryAfterMs(WithRetryAfter(status, 250)), 250);
  EXPECT_EQ(RetryAfterMs(status), std::nullopt);
}

TEST(Status, CauseAndRetryTimeAreForPrograms) {
  const absl::Status plain = absl::UnavailableError("model_worker is away");
  EXPECT_EQ(ReasonOf(FromGrpc(ToGrpc(plain))), "PROCESS_AWAY");
  const absl::Status named =
      WithReason(WithRetryAfter(absl::ResourceExhaustedError("full"), 2250), "QUEUE_FULL");
  const absl::Status received = FromGrpc(ToGrpc(named));
  EXPECT_EQ(ReasonOf(received), "QUEUE_FULL");
  EXPECT_EQ(RetryAfterMs(received), 2250);
  EXPECT_EQ(received.code(), absl::StatusCode::kResourceExhausted);
  // As any gRPC library reads it.
  google::rpc::Status sent;
  ASSERT_TRUE(sent.ParseFromString(ToGrpc(named).error_details()));
  EXPECT_EQ(sent.code(), 8);
  EXPECT_EQ(sent.message(), "full");
  ASSERT_EQ(sent.details_size(), 2);
  EXPECT_EQ(sent.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(sent.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

}  // namespace
}  // namespace withy::rpc
