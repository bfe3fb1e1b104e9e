#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "orchestrator/openai/embeddings/embeddings_answer.h"
#include "orchestrator/openai/embeddings/embeddings_request.h"

namespace withy::orchestrator {
namespace {

using nlohmann::json;
using testing::StartsWith;

EmbeddingsCall Parsed(const std::string& body) {
  const absl::StatusOr<EmbeddingsCall> call = ParseEmbeddingsCall(body);
  EXPECT_TRUE(call.ok()) << call.status();
  return call.value_or(EmbeddingsCall{});
}

TEST(EmbeddingsRequestTest, InputsAreTextsOrTokens) {
  const EmbeddingsCall text = Parsed(R"({"input": "a b", "model": "m", "user": "u"})");
  ASSERT_EQ(text.request.inputs_size(), 1);
  EXPECT_EQ(text.request.inputs(0).text(), "a b");
  EXPECT_EQ(text.request.model(), "m");
  EXPECT_FALSE(text.base64);
  EXPECT_FALSE(text.dimensions.has_value());
  const EmbeddingsCall texts =
      Parsed(R"({"input": ["a", "b"], "encoding_format": "base64", "dimensions": 7})");
  ASSERT_EQ(texts.request.inputs_size(), 2);
  EXPECT_EQ(texts.request.inputs(1).text(), "b");
  EXPECT_TRUE(texts.base64);
  EXPECT_EQ(texts.dimensions, 7u);
  const EmbeddingsCall tokens = Parsed(R"({"input": [4, 5], "encoding_format": "float"})");
  ASSERT_EQ(tokens.request.inputs_size(), 1);
  EXPECT_EQ(tokens.request.inputs(0).tokens().ids_size(), 2);
  const EmbeddingsCall lists = Parsed(R"({"input": [[4, 5], "c", [6]]})");
  ASSERT_EQ(lists.request.inputs_size(), 3);
  EXPECT_EQ(lists.request.inputs(0).tokens().ids(1), 5u);
  EXPECT_EQ(lists.request.inputs(1).text(), "c");
  EXPECT_EQ(lists.request.inputs(2).tokens().ids(0), 6u);
}

TEST(EmbeddingsRequestTest, WhatIsWrongIsNamed) {
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", "the request's body"},
           {R"({"input": null})", "input is missing"},
           {R"({"input": {}})", "input is of type object"},
           {R"({"input": 5})", "input is of type number"},
           {R"({"input": ""})", "input is an empty string"},
           {R"({"input": []})", "input is an empty array"},
           {R"({"input": ["a", ""]})", "input[1] is an empty string"},
           {R"({"input": ["a", 5]})", "input[1] is of type number"},
           {R"({"input": ["a", []]})", "input[1] is of type array"},
           {R"({"input": [1, "a"]})", "input[1] is no token"},
           {R"({"input": [[1, -1]]})", "input[0][1] is no token"},
           {R"({"input": [1.5]})", "input[0] is no token"},
           {json{{"input", std::vector<std::string>(2049, "x")}}.dump(), "input has 2049 entries"},
           {R"({"input": "a", "model": 5})", "model is of type number"},
           {R"({"input": "a", "encoding_format": "int8"})", "encoding_format is \"int8\""},
           {R"({"input": "a", "dimensions": -1})", "dimensions is -1"}}) {
    const absl::Status status = ParseEmbeddingsCall(body).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(status.message()), StartsWith(message)) << body;
  }
}

TEST(EmbeddingsRequestTest, VectorsAreNotShortened) {
  v1::ModelDescription model;
  model.set_name("m");
  model.set_embedding_values(576);
  EmbeddingsCall call;
  EXPECT_TRUE(CheckDimensions(call, model).ok());
  call.dimensions = 576;
  EXPECT_TRUE(CheckDimensions(call, model).ok());
  call.dimensions = 256;
  const absl::Status refused = CheckDimensions(call, model);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              StartsWith("dimensions is 256: vectors of m have 576"));
  model.set_embedding_values(0);
  EXPECT_EQ(CheckDimensions(call, model).code(), absl::StatusCode::kUnimplemented);
}

v1::EmbedResponse ResponseOf(const std::vector<float>& values, uint32_t tokens) {
  v1::EmbedResponse response;
  v1::Embedding& embedding = *response.add_embeddings();
  embedding.mutable_values()->Add(values.begin(), values.end());
  embedding.set_tokens(tokens);
  return response;
}

TEST(EmbeddingsAnswerTest, BothEncodingsGiveTheSameNumbers) {
  const std::vector<float> values = {0.1F, -1.0F / 3, 1e-30F, 0.0F};
  for (const bool base64 : {false, true}) {
    EmbeddingsAnswer answer(base64);
    answer.Add(ResponseOf({1}, 2));
    answer.Add({});  // progress alone
    answer.Add(ResponseOf(values, 3));
    const json document = json::parse(answer.Document("a \"model\""));
    EXPECT_EQ(document["model"], "a \"model\"");
    EXPECT_EQ(document["usage"]["prompt_tokens"], 5);
    EXPECT_EQ(document["usage"]["total_tokens"], 5);
    ASSERT_EQ(document["data"].size(), 2u);
    EXPECT_EQ(document["data"][0]["index"], 0);
    EXPECT_EQ(document["data"][1]["index"], 1);
    const json& told = document["data"][1]["embedding"];
    std::vector<float> got(values.size());
    if (base64) {
      std::string bytes;
      ASSERT_TRUE(absl::Base64Unescape(told.get<std::string>(), &bytes));
      ASSERT_EQ(bytes.size(), values.size() * sizeof(float));
      std::memcpy(got.data(), bytes.data(), bytes.size());
    } else {
      got = told.get<std::vector<float>>();
    }
    EXPECT_EQ(got, values) << base64;
  }
}

}  // namespace
}  // namespace withy::orchestrator
