#include "serving/embedding/text_embedder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/gguf/reader.h"
#include "engine/model/testing.h"
#include "engine/session/testing.h"

namespace withy::serving {
namespace {

using testing::HasSubstr;

std::vector<TextVector> EmbedAll(engine::Model& model, std::vector<std::vector<int32_t>> texts) {
  auto embedder = TextEmbedder::Create(model, std::move(texts), model.info().context_length);
  EXPECT_TRUE(embedder.ok()) << embedder.status();
  std::vector<TextVector> vectors;
  while (!(*embedder)->finished()) {
    const auto ran = (*embedder)->Run(nullptr);
    EXPECT_TRUE(ran.ok() && *ran) << ran.status();
    if (!ran.ok()) break;
    for (TextVector& vector : (*embedder)->TakeVectors()) vectors.push_back(std::move(vector));
  }
  return vectors;
}

double LengthOf(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

class TextEmbedderTest : public testing::Test {
 protected:
  void Open(engine::ModelOptions options = {}) {
    path_ = engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kF32);
    model_ = engine::OpenTiny(folder_, path_, std::move(options));
  }
  std::vector<int32_t> Tokens(int32_t count, uint32_t seed = 1) const {
    return engine::SomeTokens(count, model_->info().vocab_size, seed);
  }
  std::string Refusal(std::vector<std::vector<int32_t>> texts, absl::StatusCode code) {
    const auto embedder = TextEmbedder::Create(*model_, std::move(texts), /*window=*/8);
    EXPECT_EQ(embedder.status().code(), code) << embedder.status();
    return std::string(embedder.status().message());
  }

  const engine::TestFolder folder_;
  std::string path_;
  std::unique_ptr<engine::Model> model_;
};

// By hand: the output of the last layer, the file's norm, the mean, the length.
TEST_F(TextEmbedderTest, AVectorIsTheMeanOfTheNormedLastLayer) {
  std::vector<float> last;
  engine::ModelOptions options;
  options.hooks.layer_tap = [&](int32_t layer, std::span<const float> hidden) {
    if (layer + 1 == engine::TinyShape().layers) last.assign(hidden.begin(), hidden.end());
  };
  Open(options);
  const std::vector<int32_t> ids = Tokens(50);
  const engine::ScratchKv kv(model_->info(), 50);
  engine::RunRows(*model_, kv, engine::PlainRows(ids));
  const auto width = static_cast<size_t>(model_->info().d_model);
  ASSERT_EQ(last.size(), ids.size() * width);
  const auto file = engine::GgufFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> norm(width);
  std::memcpy(norm.data(), file->Data(*file->FindTensor("output_norm.weight")).data(),
              width * sizeof(float));
  std::vector<double> mean(width);
  for (size_t row = 0; row < ids.size(); ++row) {
    const std::vector<float> x(last.begin() + static_cast<ptrdiff_t>(row * width),
                               last.begin() + static_cast<ptrdiff_t>((row + 1) * width));
    const double rms = LengthOf(x) / std::sqrt(static_cast<double>(width));
    for (size_t c = 0; c < width; ++c) mean[c] += static_cast<double>(x[c]) / rms * norm[c];
  }
  double length = 0;
  for (const double value : mean) length += value * value;

  const std::vector<TextVector> vectors = EmbedAll(*model_, {ids});
  ASSERT_EQ(vectors.size(), 1u);
  EXPECT_EQ(vectors[0].tokens, 50);
  ASSERT_EQ(vectors[0].values.size(), width);
  EXPECT_NEAR(LengthOf(vectors[0].values), 1, 1e-6);
  for (size_t c = 0; c < width; ++c) {
    EXPECT_NEAR(vectors[0].values[c], mean[c] / std::sqrt(length), 1e-4) << c;
  }
}

TEST_F(TextEmbedderTest, AVectorDoesNotDependOnTheTextsBesideIt) {
  Open();
  const int32_t window = model_->info().context_length;
  ASSERT_GT(window, 40);
  // Some fit into a pass together; the longest take all of several.
  std::vector<std::vector<int32_t>> texts;
  for (const int32_t tokens : {1, 40, window, 3, window - 1, 17, 16}) {
    texts.push_back(Tokens(tokens, static_cast<uint32_t>(tokens)));
  }
  const std::vector<TextVector> together = EmbedAll(*model_, texts);
  ASSERT_EQ(together.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<TextVector> alone = EmbedAll(*model_, {texts[i]});
    ASSERT_EQ(alone.size(), 1u);
    EXPECT_EQ(together[i].tokens, static_cast<int32_t>(texts[i].size()));
    EXPECT_EQ(together[i].values, alone[0].values) << i;
  }
}

TEST_F(TextEmbedderTest, AStoppedRunGoesOnWhereItWas) {
  Open();
  const std::vector<int32_t> ids = Tokens(60);
  auto embedder = TextEmbedder::Create(*model_, {ids}, 60);
  ASSERT_TRUE(embedder.ok()) << embedder.status();
  const std::atomic<bool> stop{true};
  int stopped = 0;
  while (!(*embedder)->finished()) {
    const auto ran = (*embedder)->Run(&stop);
    ASSERT_TRUE(ran.ok()) << ran.status();
    if (!*ran) ++stopped;
    ASSERT_TRUE((*embedder)->Run(nullptr).ok());
  }
  EXPECT_GT(stopped, 2);
  EXPECT_EQ((*embedder)->computed_tokens(), 60u);
  const std::vector<TextVector> vectors = (*embedder)->TakeVectors();
  ASSERT_EQ(vectors.size(), 1u);
  EXPECT_EQ(vectors[0].values, EmbedAll(*model_, {ids})[0].values);
  EXPECT_TRUE((*embedder)->TakeVectors().empty());
}

TEST_F(TextEmbedderTest, WhatHasNoVectorIsNamed) {
  Open();
  EXPECT_THAT(Refusal({}, absl::StatusCode::kInvalidArgument), HasSubstr("inputs is empty"));
  EXPECT_THAT(Refusal({{1}, {}}, absl::StatusCode::kInvalidArgument), HasSubstr("inputs[1]"));
  EXPECT_THAT(Refusal({{1}, Tokens(9)}, absl::StatusCode::kOutOfRange),
              HasSubstr("inputs[1] has 9 tokens, the window of"));
  EXPECT_THAT(Refusal({{1, 1 << 30}}, absl::StatusCode::kInvalidArgument),
              HasSubstr("the token 1073741824"));
  EXPECT_THAT(Refusal({{-1}}, absl::StatusCode::kInvalidArgument), HasSubstr("the token -1"));
}

}  // namespace
}  // namespace withy::serving
