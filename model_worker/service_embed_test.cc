// Vectors of texts over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model_worker/service_testing.h"

namespace withy::model_worker {
namespace {

using testing::HasSubstr;

struct EmbeddedTexts {
  grpc::Status status;
  std::vector<v1::Embedding> embeddings;
  uint64_t computed_tokens = 0;
};

EmbeddedTexts Embed(v1::ModelWorker::Stub& stub, const v1::EmbedRequest& request) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  const auto reader = stub.Embed(&context, request);
  EmbeddedTexts embedded;
  for (v1::EmbedResponse message; reader->Read(&message);) {
    embedded.embeddings.insert(embedded.embeddings.end(), message.embeddings().begin(),
                               message.embeddings().end());
    EXPECT_GE(message.computed_tokens(), embedded.computed_tokens);
    embedded.computed_tokens = message.computed_tokens();
  }
  embedded.status = reader->Finish();
  return embedded;
}

TEST_F(ServiceTest, TextsAndTokensGetVectors) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::GetWorkerInfoResponse info;
  {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    ASSERT_TRUE(stub_->GetWorkerInfo(&context, {}, &info).ok());
  }
  const uint32_t width = info.model().embedding_values();
  EXPECT_GT(width, 0u);
  v1::EmbedRequest request;
  request.add_inputs()->set_text("some words");
  request.add_inputs()->set_text("others, and more of them");
  request.add_inputs()->set_text("some words");
  v1::TokenIds& tokens = *request.add_inputs()->mutable_tokens();
  for (const uint32_t id : {5u, 6u, 7u}) tokens.add_ids(id);
  const EmbeddedTexts embedded = Embed(*stub_, request);
  ASSERT_TRUE(embedded.status.ok()) << embedded.status.error_message();
  ASSERT_EQ(embedded.embeddings.size(), 4u);
  uint64_t all = 0;
  for (const v1::Embedding& embedding : embedded.embeddings) {
    ASSERT_EQ(static_cast<uint32_t>(embedding.values_size()), width);
    double squares = 0;
    for (const float value : embedding.values()) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(squares, 1, 1e-5);
    all += embedding.tokens();
  }
  EXPECT_EQ(embedded.computed_tokens, all);
  EXPECT_EQ(embedded.embeddings[3].tokens(), 3u);
  EXPECT_EQ(embedded.embeddings[0].SerializeAsString(), embedded.embeddings[2].SerializeAsString());
  EXPECT_NE(embedded.embeddings[0].SerializeAsString(), embedded.embeddings[1].SerializeAsString());
}

TEST_F(ServiceTest, WhatGetsNoVectorIsNamed) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  const auto refusal = [&](const v1::EmbedRequest& request, grpc::StatusCode code) {
    const grpc::Status status = Embed(*stub_, request).status;
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  };
  v1::EmbedRequest request;
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("inputs is empty"));
  request.add_inputs()->set_text("words");
  request.add_inputs();
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("inputs[1] is empty"));
  request.mutable_inputs(1)->mutable_tokens()->add_ids(4'000'000'000);
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("token 4000000000"));
  std::string lengthy;
  for (int i = 0; i < 20'000; ++i) lengthy += "words ";
  request.mutable_inputs(1)->set_text(lengthy);
  EXPECT_THAT(refusal(request, grpc::StatusCode::OUT_OF_RANGE),
              AllOf(HasSubstr("inputs[1] has "), HasSubstr("the window of")));
}

}  // namespace
}  // namespace withy::model_worker
