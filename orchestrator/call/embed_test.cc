// LlmService.Embed before a scripted worker.
#include "orchestrator/call/embed.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/contract_limits.h"
#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

// Starts to embed.
struct EmbedCall {
  EmbedCall(Board& board, const v1::EmbedRequest& request, const std::string& token = "good") {
    Authorise(&context, token);
    reader = board.stub().Embed(&context, request);
  }
  // Reads to the end.
  grpc::Status Finish() {
    for (v1::EmbedResponse message; reader->Read(&message);) {
      vectors.insert(vectors.end(), message.embeddings().begin(), message.embeddings().end());
    }
    return reader->Finish();
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::EmbedResponse>> reader;
  std::vector<v1::Embedding> vectors;
};

v1::EmbedRequest EmbedTexts(const std::vector<std::string>& texts) {
  v1::EmbedRequest request;
  for (const std::string& text : texts) request.add_inputs()->set_text(text);
  return request;
}

TEST(EmbedTest, AnAppsTextsGetTheirVectorsFromTheWorker) {
  Board board;
  EmbedCall call(board, EmbedTexts({"hello", "x"}));
  const grpc::Status status = call.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(call.vectors.size(), 2u);
  EXPECT_EQ(call.vectors[0].values(0), 5);
  EXPECT_EQ(call.vectors[1].tokens(), 1u);
  EXPECT_EQ(EmbedCall(board, EmbedTexts({"x"}), "bad").Finish().error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST(EmbedTest, BadRequestsAreNamed) {
  Board board;
  const auto refusal = [&](const v1::EmbedRequest& request, StatusCode code) {
    const grpc::Status status = EmbedCall(board, request).Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  };
  EXPECT_THAT(refusal({}, StatusCode::INVALID_ARGUMENT), HasSubstr("inputs is empty"));
  EXPECT_THAT(refusal(EmbedTexts({"x", ""}), StatusCode::INVALID_ARGUMENT),
              HasSubstr("inputs[1] is empty"));
  EXPECT_THAT(refusal(EmbedTexts(std::vector<std::string>(kMaxEmbedInputs + 1, "x")),
                      StatusCode::INVALID_ARGUMENT),
              HasSubstr("inputs has 2049 entries"));
  EXPECT_THAT(
      refusal(EmbedTexts({std::string(kMaxPromptBytes + 1, 'x')}), StatusCode::OUT_OF_RANGE),
      HasSubstr("inputs[0] is 1048577 bytes long"));
  EXPECT_THAT(refusal(EmbedTexts({"\xff\xfe"}), StatusCode::INVALID_ARGUMENT), HasSubstr("UTF-8"));
  v1::EmbedRequest request = EmbedTexts({"x"});
  request.set_model("nobody");
  EXPECT_THAT(refusal(request, StatusCode::NOT_FOUND), HasSubstr("nobody"));
  request.set_model("draft");
  EXPECT_THAT(refusal(request, StatusCode::UNIMPLEMENTED), HasSubstr("leave model empty"));
}

// All threads are taken by calls that are held; as many may wait for one.
TEST(EmbedTest, ManyWaitForTheirTurnAndTooManyAreRefused) {
  Board board;
  std::vector<std::unique_ptr<EmbedCall>> held;
  for (uint32_t i = 0; i < TextEmbeddings::kMostCalls; ++i) {
    held.push_back(std::make_unique<EmbedCall>(board, EmbedTexts({"hold"})));
  }
  ASSERT_TRUE(board.worker.AwaitEmbeds(int{TextEmbeddings::kMostCalls}));
  std::atomic<int> refused{0};
  absl::Notification told;
  std::vector<std::thread> more;
  for (uint32_t i = 0; i <= TextEmbeddings::kMostCalls; ++i) {
    more.emplace_back([&] {
      EmbedCall call(board, EmbedTexts({"x"}));
      const grpc::Status status = call.Finish();
      if (status.ok()) return;
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      EXPECT_EQ(call.context.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
      if (refused.fetch_add(1) == 0) told.Notify();
    });
  }
  told.WaitForNotification();
  board.worker.Release();
  for (std::thread& thread : more) thread.join();
  EXPECT_EQ(refused, 1);
  for (const auto& call : held) EXPECT_TRUE(call->Finish().ok());
}

TEST(EmbedTest, ItEndsWithItsCallerAndIsChargedAsFarAsItCame) {
  v1::Config config;
  v1::AppBudget& budget = *config.mutable_orchestrator()->add_app_budgets();
  budget.set_app("one");
  budget.set_tokens_per_day(5);
  Board board(config);
  EmbedCall left(board, EmbedTexts({"12345", "hold"}));
  ASSERT_TRUE(board.worker.AwaitEmbeds(1));
  v1::EmbedResponse first;
  ASSERT_TRUE(left.reader->Read(&first));
  left.context.TryCancel();
  EXPECT_EQ(left.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(board.worker.AwaitCancelled(1));
  // It is charged a moment later than its stream ends; what counts tokens is charged nothing.
  grpc::Status refused;
  v1::CountTokensRequest count;
  count.mutable_prompt()->set_text("1");
  for (int tries = 0; tries < 1000 && refused.ok(); ++tries) {
    grpc::ClientContext context;
    Authorise(&context);
    v1::CountTokensResponse counted;
    refused = board.stub().CountTokens(&context, count, &counted);
  }
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("tokens_per_day"));
}

TEST(EmbedTest, WithoutAWorkerItIsUnavailableByName) {
  Board board;
  board.StopWorker();
  const grpc::Status status = EmbedCall(board, EmbedTexts({"hello"})).Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("model_worker"));
}

}  // namespace
}  // namespace withy::orchestrator
