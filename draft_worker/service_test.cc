// Tests the draft worker over a real socket with a tiny model.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "base/config.h"
#include "draft_worker/process.h"
#include "engine/gguf/reader.h"
#include "engine/model/testing.h"
#include "engine/tokenizer/tokenizer.h"
#include "rpc/channel.h"
#include "withy/v1/draft_worker.grpc.pb.h"

namespace withy::draft_worker {
namespace {

using testing::HasSubstr;

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    config_.set_run_dir(folder_.path());
    config_.set_state_dir(folder_.path());
    engine::SynthShape shape = engine::TinyShape();
    shape.context_length = 2048;
    shape.vocab_size = 8192;  // only one of these tokens ends an answer
    config_.mutable_draft()->set_path(engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0));
    config_.mutable_draft()->set_listen("unix:" + (folder_ / "draft.sock"));
    config_.mutable_draft()->set_threads(1);
    EXPECT_TRUE(FillDefaults(&config_).ok());
    auto process = StartDraftWorker(config_);
    EXPECT_TRUE(process.ok()) << process.status();
    if (process.ok()) process_ = *std::move(process);
  }

  // A request for `max_tokens` tokens, unless the answer ends earlier.
  static v1::RunRequest Ask(uint32_t max_tokens) {
    v1::RunRequest request;
    request.mutable_prompt()->set_text("hello");
    request.mutable_sampling()->set_temperature(0);
    request.mutable_limits()->set_max_tokens(max_tokens);
    request.mutable_limits()->set_logprobs(20);
    return request;
  }

  engine::TestFolder folder_;
  proto::Config config_;
  std::unique_ptr<rpc::Process> process_;
};

TEST_F(ServiceTest, ACutAnswerSaysSoAndHowItWasDrawn) {
  const auto stub = v1::DraftWorker::NewStub(rpc::Connect(config_.draft().listen()));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  v1::RunRequest request = Ask(5);
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_seed(7);
  const auto reader = stub->Run(&context, request);
  v1::RunResponse response;
  v1::GenerateFinished finished;
  while (reader->Read(&response)) {
    if (response.has_finished()) finished = response.finished();
    for (const v1::Token& token : response.delta().tokens()) EXPECT_FALSE(token.text().empty());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_THAT(finished.explanation(), HasSubstr("cut after 5 tokens"));
  EXPECT_FLOAT_EQ(finished.sampling().temperature(), 0.5f);
  EXPECT_FLOAT_EQ(finished.sampling().repetition_penalty(), 1.1f);
  EXPECT_EQ(finished.sampling().seed(), 7u);
}

TEST_F(ServiceTest, AReaderThatStopsIsEndedAndOthersAreAnswered) {
  // A connection that buffers little ahead of its reader.
  grpc::ChannelArguments narrow;
  narrow.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stalled_stub = v1::DraftWorker::NewStub(grpc::CreateCustomChannel(
      config_.draft().listen(), grpc::InsecureChannelCredentials(), narrow));
  grpc::ClientContext stalled_context;
  rpc::SetTimeout(&stalled_context, absl::Seconds(120));
  const auto stalled = stalled_stub->Run(&stalled_context, Ask(1800));
  v1::RunResponse response;
  ASSERT_TRUE(stalled->Read(&response)) << "it has begun";

  const auto stub = v1::DraftWorker::NewStub(rpc::Connect(config_.draft().listen()));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  const auto reader = stub->Run(&context, Ask(5));
  int deltas = 0;
  while (reader->Read(&response)) deltas += response.has_delta() ? 1 : 0;
  const grpc::Status answered = reader->Finish();
  EXPECT_TRUE(answered.ok()) << answered.error_message();
  EXPECT_GE(deltas, 5);

  // What was sent can still be read, followed by the reason for the end.
  int left = 0;
  while (stalled->Read(&response)) ++left;
  const grpc::Status ended = stalled->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("read the stream"));
  EXPECT_LT(left, 1800);
}

TEST_F(ServiceTest, DraftsForTheTargetsCallsAndSaysWhatIsWrongWithARequest) {
  const auto file = engine::GgufFile::Open(config_.draft().path());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = engine::MakeTokenizer(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto stub = v1::DraftWorker::NewStub(rpc::Connect(config_.draft().listen()));
  v1::DraftCall request;
  request.set_call_id(1);
  request.set_vocabulary((*tokenizer)->fingerprint());
  for (const int32_t token : {5, 6, 7}) request.add_tokens(token);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_repetition_penalty(1);
  request.set_max_tokens(4);
  request.set_max_depth(4);
  v1::CallDraft response;
  const auto draft = [&](const v1::DraftCall& asked) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    v1::DraftRequest one;
    *one.add_calls() = asked;
    v1::DraftResponse trees;
    const grpc::Status status = stub->Draft(&context, one, &trees);
    response = trees.calls_size() == 1 ? trees.calls(0) : v1::CallDraft();
    return status;
  };
  const grpc::Status status = draft(request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.tokens_size(), 0);
  EXPECT_EQ(response.tokens(0).parent(), -1);
  EXPECT_GT(response.tokens(0).probability(), 0);
  EXPECT_GT(response.passes(), 0u);
  v1::DraftCall later = request;
  later.set_known_tokens(3);
  EXPECT_TRUE(draft(later).ok());
  EXPECT_FALSE(response.unknown());
  later.set_call_id(2);
  EXPECT_TRUE(draft(later).ok());
  EXPECT_TRUE(response.unknown());

  // Two calls in passes that they share, one of them as it was drafted alone.
  v1::DraftRequest both;
  *both.add_calls() = request;
  *both.add_calls() = request;
  both.mutable_calls(1)->set_call_id(3);
  both.mutable_calls(1)->set_tokens(2, 9);
  v1::DraftResponse trees;
  const auto together = [&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    trees.Clear();
    return stub->Draft(&context, both, &trees);
  };
  ASSERT_TRUE(draft(request).ok());
  const grpc::Status shared = together();
  ASSERT_TRUE(shared.ok()) << shared.error_message();
  ASSERT_EQ(trees.calls_size(), 2);
  ASSERT_EQ(trees.calls(0).tokens_size(), response.tokens_size());
  for (int i = 0; i < response.tokens_size(); ++i) {
    EXPECT_EQ(trees.calls(0).tokens(i).token(), response.tokens(i).token());
  }
  EXPECT_GT(trees.calls(1).tokens_size(), 0);
  both.mutable_calls(1)->set_call_id(1);
  EXPECT_EQ(together().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "one call twice";

  const auto refused = [&](const std::function<void(v1::DraftCall&)>& change) {
    v1::DraftCall wrong = request;
    change(wrong);
    return draft(wrong).error_code();
  };
  using grpc::StatusCode;
  EXPECT_EQ(refused([](auto& r) { r.set_vocabulary(1); }), StatusCode::FAILED_PRECONDITION);
  v1::DraftCall another = request;
  another.set_vocabulary(1);
  EXPECT_THAT(draft(another).error_message(), HasSubstr("draft.path"));
  EXPECT_EQ(refused([](auto& r) { r.set_max_tokens(0); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_max_tokens(256); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_max_depth(0); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_alpha(1); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.add_tokens(-1); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_known_tokens(1 << 30); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_sampling()->set_top_p(-1); }),
            StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace withy::draft_worker
