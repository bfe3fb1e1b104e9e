// Another model is served without a restart of the service: calls end on the old one, contexts go
// on with the new one, and what cannot be served changes nothing.
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"
#include "withy/v1/model_worker.grpc.pb.h"

namespace withy::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ModelUseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    board_.StartAll();
    ASSERT_TRUE(board_.WaitUntilServing()) << board_.Log("model_worker");
    stub_ = board_.NewStub();
    token_ = board_.BindApp("app");
  }

  std::unique_ptr<v1::ModelWorker::Stub> Worker() const {
    return v1::ModelWorker::NewStub(grpc::CreateChannel(
        "unix:" + board_.dir() + "/run/model_worker.sock", grpc::InsecureChannelCredentials()));
  }
  // Until the worker serves `path`, or the patience ends.
  v1::GetWorkerInfoResponse WaitFor(const std::string& path) const {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    v1::GetWorkerInfoResponse info;
    while (absl::Now() < end) {
      grpc::ClientContext context;
      Authorise(&context, "");
      info.Clear();
      const auto status = Worker()->GetWorkerInfo(&context, v1::GetWorkerInfoRequest(), &info);
      if (status.ok() && info.model_path() == path) break;
      absl::SleepFor(absl::Milliseconds(50));
    }
    EXPECT_EQ(info.model_path(), path) << board_.Log("model_worker");
    return info;
  }
  grpc::Status Use(const std::string& path) const {
    grpc::ClientContext context;
    Authorise(&context, "", absl::Seconds(60));
    v1::UseModelRequest request;
    request.set_path(path);
    const auto worker = Worker();
    const auto reader = worker->UseModel(&context, request);
    v1::UseModelResponse response;
    while (reader->Read(&response)) continue;
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(response.changes(), status.ok());
    return status;
  }
  void WriteChoice(const std::string& text) const {
    std::ofstream(board_.dir() + "/state/model_choice") << text;
  }
  void Restart() {
    board_.Kill("model_worker");
    board_.Start("model_worker");
  }

  const std::string slow_ = TestSlowPath();
  const std::string other_ = TestElasticPath();
  // A busy machine's answers end before the drain does.
  Board board_{{"model.path=" + slow_, "orchestrator.drain_s=120"}};
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
};

class KeptArenaModelUseTest : public ModelUseTest {
 protected:
  void SetUp() override {
    board_.KeepArena();
    ModelUseTest::SetUp();
  }
};

TEST_F(ModelUseTest, RunningAnswersEndOnTheOldModelAndContextsGoOnWithTheNewOne) {
  const std::string context = CreateContext(*stub_, token_);
  const v1::GenerateRequest question = UserRequest(context, "tell me a long story", 150);
  const Answer whole = Generate(*stub_, token_, UserRequest("", "tell me a long story", 150));
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  const pid_t pid = board_.Pid("model_worker");

  std::thread change;
  int deltas = 0;
  const Answer during = Generate(*stub_, token_, question, [&](const Answer&) {
    if (++deltas == 4) change = std::thread([&] { EXPECT_TRUE(Use(other_).ok()); });
    return true;
  });
  ASSERT_TRUE(change.joinable()) << during.status;
  change.join();
  EXPECT_TRUE(during.status.ok()) << during.status;
  EXPECT_EQ(during.text, whole.text);
  const v1::GetWorkerInfoResponse info = WaitFor(other_);
  EXPECT_EQ(info.status().pid(), static_cast<uint32_t>(pid)) << "the process stays";
  EXPECT_EQ(info.refused_model(), "");

  const Answer after = GenerateWithRetry(*stub_, token_, UserRequest(context, "go on", 20));
  ASSERT_TRUE(after.status.ok()) << after.status;
  EXPECT_EQ(after.finished.usage().completion_tokens(), 20u);
  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, context, &kept).ok());
  EXPECT_EQ(kept.messages_size(), 4);

  Restart();  // the choice is kept
  WaitFor(other_);
  EXPECT_TRUE(Use("").ok());
  WaitFor(slow_);
  const Answer again =
      GenerateWithRetry(*stub_, token_, UserRequest("", "tell me a long story", 150));
  EXPECT_EQ(again.text, whole.text);
}

// The worker keeps its process, and with it what the store's earlier process knew of it.
TEST_F(KeptArenaModelUseTest, AStoreThatRestartsMeanwhileServesTheNewModel) {
  const std::string context = CreateContext(*stub_, token_);
  ASSERT_TRUE(Generate(*stub_, token_, UserRequest(context, "a story", 20)).status.ok());
  const pid_t pid = board_.Pid("model_worker");
  board_.Kill("context_store");
  ASSERT_TRUE(Use(other_).ok());
  EXPECT_EQ(WaitFor(other_).status().pid(), static_cast<uint32_t>(pid));
  board_.Start("context_store");
  ASSERT_TRUE(board_.WaitUntilServing()) << board_.Log("model_worker");
  const Answer after = GenerateWithRetry(*stub_, token_, UserRequest(context, "go on", 20));
  EXPECT_TRUE(after.status.ok()) << after.status;
}

TEST_F(ModelUseTest, WhatCannotBeServedIsRefusedAndChangesNothing) {
  const std::string garbage = board_.dir() + "/garbage.gguf";
  std::ofstream(garbage) << "this is no model";
  EXPECT_EQ(Use("/nonexistent.gguf").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Use("models/relative.gguf").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status wrong = Use(garbage);
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(wrong.error_message(), HasSubstr(garbage));
  EXPECT_FALSE(fs::exists(board_.dir() + "/state/model_choice"));
  EXPECT_EQ(WaitFor(slow_).refused_model(), "");
}

TEST_F(ModelUseTest, AChoiceThatDoesNotOpenIsGivenUpForTheConfiguredModel) {
  const std::string garbage = board_.dir() + "/garbage.gguf";
  std::ofstream(garbage) << "this is no model";
  const std::string of_slow = "configured_path: \"" + slow_ + "\" path: \"";
  WriteChoice(of_slow + garbage + "\"");
  Restart();
  EXPECT_THAT(WaitFor(slow_).refused_model(), HasSubstr(garbage));
  // The process was killed while it opened it.
  WriteChoice(of_slow + other_ + "\" begun: true");
  Restart();
  EXPECT_THAT(WaitFor(slow_).refused_model(), HasSubstr("ended while it opened it"));
  // One that was served before stays chosen.
  WriteChoice(of_slow + other_ + "\" begun: true served: true");
  Restart();
  WaitFor(other_);
  // A choice for another configuration does not hold, unless it is of just now; nor does a damaged
  // one.
  const std::string of_another = "configured_path: \"/another.gguf\" path: \"" + other_ + "\"";
  WriteChoice(of_another + " begun: true served: true");
  Restart();
  WaitFor(slow_);
  WriteChoice(of_another);
  Restart();
  WaitFor(other_);
  WriteChoice(of_another + " failure: \"no room\"");
  Restart();
  WaitFor(slow_);
  WriteChoice("path {");
  Restart();
  EXPECT_EQ(WaitFor(slow_).refused_model(), "");
}

}  // namespace
}  // namespace withy::e2e
