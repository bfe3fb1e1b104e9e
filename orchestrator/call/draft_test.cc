// What is asked of the draft: its tokens, and whether there is one.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

// The draft may have a vocabulary of its own: it counts what it is asked, with or without a target.
TEST(DraftTest, TheDraftCountsItsOwnTokens) {
  Board board;
  board.StartDraft();
  board.draft.model.SetBytesPerToken(2);
  v1::GenerateRequest request = Ask(std::string(400, 'x'));
  request.set_model("draft");
  v1::PlanResponse plan;
  const auto planned = [&] {
    grpc::ClientContext context;
    Authorise(&context);
    return board.stub().Plan(&context, request, &plan);
  };
  ASSERT_TRUE(planned().ok());
  EXPECT_EQ(plan.prompt_tokens(), 200u);
  const Outcome outcome = board.Generate(request);
  EXPECT_EQ(outcome.started.decision().predicted_prompt_tokens(), 200u);

  v1::CountTokensRequest count;
  *count.mutable_prompt() = request.prompt();
  const auto counted = [&](const std::string& model) {
    count.set_model(model);
    grpc::ClientContext context;
    Authorise(&context);
    v1::CountTokensResponse response;
    const grpc::Status status = board.stub().CountTokens(&context, count, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.tokens();
  };
  EXPECT_EQ(counted("draft"), 200u);
  EXPECT_EQ(counted("target"), 400u);
  EXPECT_EQ(counted(""), 400u);

  board.StopWorker();
  EXPECT_TRUE(planned().ok());
  request = Ask(std::string(70'000, 'x'));
  request.set_model("draft");
  const grpc::Status refused = board.Generate(request).status;
  EXPECT_EQ(refused.error_code(), StatusCode::OUT_OF_RANGE) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("35000 tokens"));
}

TEST(DraftTest, CountTokensOfAModelThatThereIsNotIsNotFound) {
  Board board;
  v1::CountTokensRequest count;
  count.mutable_prompt()->set_text("x");
  count.set_model("other");
  grpc::ClientContext context;
  Authorise(&context);
  v1::CountTokensResponse response;
  EXPECT_EQ(board.stub().CountTokens(&context, count, &response).error_code(),
            StatusCode::NOT_FOUND);
}

TEST(DraftTest, ADraftThatServesNoModelSaysWhy) {
  Board board;
  board.StartDraft();
  board.draft.model.SetWithoutModel("no draft: its vocabulary is another one");
  v1::GenerateRequest request = Ask("hello");
  request.set_model("draft");
  const grpc::Status refused = board.Generate(request).status;
  EXPECT_EQ(refused.error_code(), StatusCode::NOT_FOUND);
  EXPECT_THAT(refused.error_message(), HasSubstr("no draft: its vocabulary"));
  v1::ListModelsResponse models;
  grpc::ClientContext context;
  Authorise(&context);
  ASSERT_TRUE(board.stub().ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).role(), "target");
  ASSERT_EQ(models.notes_size(), 1);
  EXPECT_THAT(models.notes(0), HasSubstr("no draft: its vocabulary"));
}

}  // namespace
}  // namespace withy::orchestrator
