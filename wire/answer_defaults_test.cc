#include "wire/answer_defaults.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>

#include "base/test_seed.h"

namespace withy::engine {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr int32_t kVocabulary = 1000;

v1::Sampling Defaults(const v1::ModelConfig& config = {}, const RecommendedSampling& file = {}) {
  return DefaultsFor(config, file, kVocabulary).sampling;
}

TEST(AnswerDefaultsTest, AreSaneForAChatWhereNobodySaysAnything) {
  const v1::Sampling own = Defaults();
  EXPECT_FLOAT_EQ(own.temperature(), 0.7f);
  EXPECT_FLOAT_EQ(own.top_p(), 0.95f);
  EXPECT_FLOAT_EQ(own.repetition_penalty(), 1.1f);
  EXPECT_EQ(own.top_k(), 0u);
  EXPECT_EQ(own.min_p(), 0.0f);
  EXPECT_EQ(own.repetition_window(), 256u);
  EXPECT_EQ(Describe(own), "temperature 0.7, top-p 0.95, repetition penalty 1.1 over 256 tokens");
}

TEST(AnswerDefaultsTest, AFilesRecommendationCountsAsAWhole) {
  RecommendedSampling file;
  file.temperature = 0.6f;
  file.top_k = 20;
  EXPECT_EQ(Describe(Defaults({}, file)), "temperature 0.6, top-k 20");
  file = {};
  file.top_p = 0.8f;
  EXPECT_EQ(Describe(Defaults({}, file)), "temperature 0.7, top-p 0.8");
  file = {};
  file.temperature = 0.0f;
  EXPECT_EQ(Describe(Defaults({}, file)), "greedy");
}

TEST(AnswerDefaultsTest, TheConfigurationStandsBeforeTheFileFieldByField) {
  RecommendedSampling file;
  file.temperature = 0.6f;
  file.top_k = 20;
  v1::ModelConfig config;
  config.mutable_sampling()->set_temperature(0.3f);
  EXPECT_EQ(Describe(Defaults(config, file)), "temperature 0.3, top-k 20");
  config.mutable_sampling()->set_temperature(0);
  EXPECT_EQ(Describe(Defaults(config, file)), "greedy");
  config.mutable_sampling()->set_repetition_penalty(1.2f);
  EXPECT_EQ(Describe(Defaults(config, file)), "greedy, repetition penalty 1.2 over 64 tokens");
}

TEST(AnswerDefaultsTest, ATopKAboveTheVocabularyIsAllOfIt) {
  v1::ModelConfig config;
  config.mutable_sampling()->set_top_k(kVocabulary + 1);
  EXPECT_EQ(Defaults(config).top_k(), 0u);
}

TEST(AnswerDefaultsTest, ACallSaysWhatItWantsAndGetsTheRest) {
  v1::Sampling asked;
  asked.set_temperature(1);
  EXPECT_EQ(Describe(WithDefaults(asked, Defaults())),
            "temperature 1, top-p 0.95, repetition penalty 1.1 over 256 tokens");
  asked.set_temperature(0);
  EXPECT_EQ(Describe(WithDefaults(asked, Defaults())), "greedy")
      << "nothing is left of the defaults";
  asked.set_repetition_penalty(1.3f);
  EXPECT_EQ(Describe(WithDefaults(asked, Defaults())),
            "greedy, repetition penalty 1.3 over 64 tokens");
}

TEST(AnswerDefaultsTest, LengthsAreTheConfigurationsElseLong) {
  AnswerDefaults defaults = DefaultsFor({}, {}, kVocabulary);
  EXPECT_EQ(defaults.max_tokens, 2048u);
  EXPECT_EQ(defaults.raw_max_tokens, 256u);
  v1::ModelConfig config;
  config.set_max_tokens(1000);
  defaults = DefaultsFor(config, {}, kVocabulary);
  EXPECT_EQ(defaults.max_tokens, 1000u);
  EXPECT_EQ(defaults.raw_max_tokens, 1000u);
}

// For any request and defaults the result sets every field, keeps the requested values, and is
// unchanged by a second pass.
TEST(AnswerDefaultsTest, WhatWasUsedCanBeAskedForAgain) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto any = [&] {
    v1::Sampling sampling;
    const auto share = [&] { return static_cast<float>(random() % 1000 + 1) / 1000; };
    if (random() % 2) sampling.set_temperature(random() % 3 == 0 ? 0 : share());
    if (random() % 2) sampling.set_top_k(random() % 100);
    if (random() % 2) sampling.set_top_p(share());
    if (random() % 2) sampling.set_min_p(share() / 2);
    if (random() % 2) sampling.set_repetition_penalty(share() * 2);
    if (random() % 2) sampling.set_repetition_window(random() % 100);
    return sampling;
  };
  for (int i = 0; i < 2000; ++i) {
    v1::ModelConfig config;
    *config.mutable_sampling() = any();
    RecommendedSampling file;
    if (random() % 2) file.temperature = 0.5f;
    if (random() % 2) file.min_p = 0.1f;
    const v1::Sampling defaults = Defaults(config, file);
    v1::Sampling asked = any();
    if (random() % 2) asked.set_seed(random());
    const v1::Sampling used = WithDefaults(asked, defaults);
    EXPECT_TRUE(used.has_temperature() && used.has_top_k() && used.has_top_p() &&
                used.has_min_p() && used.has_repetition_penalty() && used.has_repetition_window())
        << used.DebugString();
    EXPECT_TRUE(MessageDifferencer::Equals(WithDefaults(used, Defaults()), used));
    v1::Sampling kept = used;
    kept.MergeFrom(asked);
    EXPECT_TRUE(MessageDifferencer::Equals(kept, used)) << asked.DebugString();
  }
}

}  // namespace
}  // namespace withy::engine
