// The worker over the wire, for tests of its service: a real tiny model, real sockets and arena, a
// scripted store.
#pragma once

#include <grpcpp/impl/codegen/client_callback.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/model/testing.h"
#include "model_worker/process.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "store_client/store_server_testing.h"
#include "withy/v1/model_worker.grpc.pb.h"

namespace withy::model_worker {

struct Answer {
  grpc::Status status;
  v1::RunAccepted accepted;
  std::string text;
  v1::GenerateFinished finished;
  std::vector<uint32_t> new_levels;  // as deltas told them
  std::vector<int> deltas;           // tokens of each
  bool retry_hint = false;
};

// Slow enough to be cancelled in mid-answer, small enough to be written in no time.
inline engine::SynthShape SlowShape() {
  engine::SynthShape shape = engine::TinyShape();
  shape.layers = 12;
  shape.d_model = 512;
  shape.head_dim = 64;
  shape.d_ff = 2048;
  return shape;
}

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    config_.set_run_dir(folder_.path());
    config_.set_state_dir(folder_.path());
    config_.mutable_model()->set_path(
        engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0));
    config_.mutable_model()->set_listen("unix:" + (folder_ / "worker.sock"));
    config_.mutable_model()->set_threads(2);
    config_.mutable_store()->set_listen("unix:" + (folder_ / "store.sock"));
    EXPECT_TRUE(FillDefaults(&config_).ok());
  }

  void ServeSlowModel() {
    config_.mutable_model()->set_path(
        engine::WriteTiny(folder_, SlowShape(), engine::GgmlType::kQ8_0, "slow.gguf"));
    StartStore();
    StartWorker();
    WaitUntilServing(true);
  }
  // The model's file, but named as no UTF-8 text is.
  void NameModelInLatin1() {
    const auto plain = engine::GgufFile::Open(config_.model().path());
    ASSERT_TRUE(plain.ok()) << plain.status();
    engine::GgufWriter writer;
    writer.CopyMetadata(*plain);
    writer.SetString("general.name", "mod\xE8le");
    for (const engine::TensorInfo& tensor : plain->tensors()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, plain->Data(tensor));
    }
    ASSERT_TRUE(writer.Write(folder_ / "latin1.gguf").ok());
    config_.mutable_model()->set_path(folder_ / "latin1.gguf");
  }
  void StartWorker() {
    auto worker = StartModelWorker(config_);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    channel_ = rpc::Connect(config_.model().listen());
    stub_ = v1::ModelWorker::NewStub(channel_);
  }
  void StartStore(uint64_t first_epoch = 10) {
    store_ = std::make_unique<store_client::FakeStoreServer>(folder_.path(), first_epoch);
  }

  // Follows grpc.health.v1.Health/Watch until the state is as wanted.
  void WaitUntilServing(bool serving) {
    // HealthCheckRequest for the whole server is empty; HealthCheckResponse{status} is field 1.
    const std::string wanted = serving ? std::string("\x08\x01") : std::string("\x08\x02");
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    const grpc::internal::RpcMethod watch("/grpc.health.v1.Health/Watch",
                                          grpc::internal::RpcMethod::SERVER_STREAMING);
    const grpc::Slice empty;
    const grpc::ByteBuffer request(&empty, 1);
    const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
        grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(channel_.get(), watch,
                                                                      &context, request));
    grpc::ByteBuffer response;
    while (reader->Read(&response)) {
      grpc::Slice slice;
      ASSERT_TRUE(response.DumpToSingleSlice(&slice).ok());
      if (std::string(slice.begin(), slice.end()) == wanted) {
        context.TryCancel();
        while (reader->Read(&response)) {
        }
        reader->Finish();
        return;
      }
    }
    FAIL() << "health never became " << (serving ? "SERVING" : "NOT_SERVING");
  }

  static v1::RunRequest Asking(const std::string& context, const std::string& text,
                               uint32_t max_tokens = 8) {
    v1::RunRequest request;
    request.set_call_id(1);
    request.set_app_id("app");
    request.set_context_id(context);
    v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(text);
    request.mutable_limits()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }

  // Runs a call; cancels it from this side after `cancel_after` deltas.
  Answer Run(const v1::RunRequest& request, int cancel_after = 1 << 30) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    const auto reader = stub_->Run(&context, request);
    Answer answer;
    v1::RunResponse response;
    while (reader->Read(&response)) {
      if (response.has_accepted()) answer.accepted = response.accepted();
      if (response.has_finished()) answer.finished = response.finished();
      if (!response.has_delta()) continue;
      answer.text += response.delta().text();
      answer.deltas.push_back(response.delta().tokens_size());
      if (response.delta().has_model_level_percent())
        answer.new_levels.push_back(response.delta().model_level_percent());
      if (std::ssize(answer.deltas) == cancel_after) context.TryCancel();
    }
    answer.status = reader->Finish();
    answer.retry_hint = context.GetServerTrailingMetadata().count(rpc::kRetryAfterKey) > 0;
    return answer;
  }

  engine::TestFolder folder_;
  proto::Config config_;
  std::unique_ptr<store_client::FakeStoreServer> store_;
  std::unique_ptr<rpc::Process> worker_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ModelWorker::Stub> stub_;
};

}  // namespace withy::model_worker
