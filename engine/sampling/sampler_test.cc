#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace withy::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Sample Pick(const SamplingParams& params, std::vector<float> logits, uint64_t position = 0,
            std::vector<int32_t> history = {}) {
  Sampler sampler = Sampler::Create(params).value();
  const auto sample = sampler.Pick(logits, position, history);
  EXPECT_TRUE(sample.ok()) << sample.status();
  return *sample;
}

// The set of tokens that can be sampled.
std::set<int32_t> Reachable(const SamplingParams& params, const std::vector<float>& logits) {
  Sampler sampler = Sampler::Create(params).value();
  std::set<int32_t> ids;
  for (uint64_t position = 0; position < 4000; ++position) {
    ids.insert(sampler.Pick(logits, position, {})->id);
  }
  return ids;
}

TEST(SamplerTest, PhiloxGivesThePublishedNumbers) {
  // Known answer of Philox 4x32-10 for counter and key zero: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  EXPECT_EQ(UniformAt(0, 0), static_cast<double>(0xe169c58d6627e8d5 >> 11) * 0x1p-53);
}

TEST(SamplerTest, UniformIsUniformAndPure) {
  double sum = 0.0;
  std::vector<int> buckets(10);
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = UniformAt(42, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    ++buckets[static_cast<size_t>(u * 10)];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  for (const int count : buckets) EXPECT_NEAR(count, 0.1 * kDraws, 500);
  EXPECT_EQ(UniformAt(1, 2), UniformAt(1, 2));
  EXPECT_NE(UniformAt(1, 2), UniformAt(2, 1));
  EXPECT_NE(UniformAt(1, 2), UniformAt(1 + (uint64_t{1} << 32), 2));
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestId) {
  EXPECT_EQ(Pick({}, {1.0f, 3.0f, 2.0f}).id, 1);
  EXPECT_EQ(Pick({}, {1.0f, 3.0f, 3.0f}).id, 1);
  EXPECT_EQ(Pick({}, {-kInf, -5.0f, -kInf}).id, 1);
}

TEST(SamplerTest, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f), -kInf};
  for (const float temperature : {1.0f, 0.5f}) {
    Sampler sampler = Sampler::Create({.temperature = temperature, .seed = 9}).value();
    std::map<int32_t, int> counts;
    constexpr int kDraws = 50000;
    for (int i = 0; i < kDraws; ++i)
      ++counts[sampler.Pick(logits, static_cast<uint64_t>(i), {})->id];
    std::vector<double> expected = {0.5, 0.3, 0.2};
    double total = 0;
    for (double& p : expected) total += p = std::pow(p, 1.0 / temperature);
    for (int32_t id = 0; id < 3; ++id) {
      EXPECT_NEAR(counts[id] / double{kDraws}, expected[static_cast<size_t>(id)] / total, 0.01);
    }
    EXPECT_EQ(counts.count(3), 0u);
  }
}

TEST(SamplerTest, TheSamePositionDrawsTheSame) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  const SamplingParams params = {.temperature = 1.0f, .top_k = 200, .top_p = 0.9f, .seed = 3};
  Sampler used = Sampler::Create(params).value();
  for (uint64_t position = 0; position < 50; ++position) {
    const int32_t id = used.Pick(logits, position, {})->id;
    EXPECT_EQ(Pick(params, logits, position).id, id) << "an earlier draw must not matter";
  }
}

TEST(SamplerTest, CutsKeepWhatTheyShould) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.3f),
                                     std::log(0.2f)};
  EXPECT_EQ(Reachable({.temperature = 1.0f}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Reachable({.temperature = 1.0f, .top_k = 2}, logits), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(Reachable({.temperature = 1.0f, .top_p = 0.65f}, logits), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(Reachable({.temperature = 1.0f, .top_p = 0.75f}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Reachable({.temperature = 1.0f, .min_p = 0.6f}, logits), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(Reachable({.temperature = 1.0f, .min_p = 1.0f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(Reachable({.temperature = 1.0f, .top_p = 1e-6f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(Reachable({.temperature = 10.0f, .top_k = 1}, logits), (std::set<int32_t>{1}));
  // Top-p counts the probability of what top-k left.
  EXPECT_EQ(Reachable({.temperature = 1.0f, .top_k = 2, .top_p = 0.5f}, logits),
            (std::set<int32_t>{1}));
  // Of equally likely tokens the highest ids are dropped.
  EXPECT_EQ(Reachable({.temperature = 1.0f, .top_k = 2}, {1, 1, 1, 1}), (std::set<int32_t>{0, 1}));
}

TEST(SamplerTest, TopPAgreesWithSortingEverything) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 20; ++round) {
    std::vector<float> logits(3000);
    for (float& logit : logits) logit = normal(random);
    std::vector<int32_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    double total = 0;
    for (const float logit : logits) total += std::exp(logit);
    const float top_p = 0.2f + 0.15f * static_cast<float>(round % 5);
    double sum = 0;
    size_t kept = 0;
    while (sum < top_p * total) sum += std::exp(logits[static_cast<size_t>(order[kept++])]);
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept));
    for (uint64_t position = 0; position < 40; ++position) {
      const int32_t id =
          Pick({.temperature = 1.5f, .top_p = top_p, .seed = 4}, logits, position).id;
      EXPECT_TRUE(
          std::binary_search(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), id));
    }
  }
}

TEST(SamplerTest, RepetitionPenaltyCountsOnceAndOnlyInTheWindow) {
  const SamplingParams params = {.repetition_penalty = 2.0f, .repetition_window = 2};
  EXPECT_EQ(Pick(params, {3.0f, 2.0f}, 0, {0}).id, 1);
  EXPECT_EQ(Pick(params, {3.0f, 2.0f}, 0, {0, 5, 7}).id, 0) << "outside the window, ids unknown";
  EXPECT_EQ(Pick(params, {5.0f, 2.0f}, 0, {0, 0}).id, 0) << "twice in the history counts once";
  EXPECT_EQ(Pick(params, {-1.0f, -1.5f}, 0, {0, -3}).id, 1);
}

// Whatever cuts the distribution, only tokens of the mask are drawn, as if the others had no logit.
TEST(SamplerTest, DrawsAmongAllowedTokensAlone) {
  std::mt19937 random(3);
  std::vector<float> logits(70);
  for (float& logit : logits) logit = std::normal_distribution<float>(0, 3)(random);
  std::vector<uint32_t> mask = {0x00f0'0f01u, 0x8000'0000u, 0x2au};
  std::vector<float> restricted = logits;
  for (size_t i = 0; i < logits.size(); ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) restricted[i] = -kInf;
  }
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 1.5f},
        SamplingParams{.temperature = 1, .top_k = 5},
        SamplingParams{.temperature = 1, .top_p = 0.8f, .repetition_penalty = 1.5f},
        SamplingParams{.temperature = 2, .min_p = 0.01f}}) {
    Sampler sampler = Sampler::Create(params).value();
    for (uint64_t position = 0; position < 200; ++position) {
      const std::vector<int32_t> history = {0, 9, 31};
      const auto sample = sampler.Pick(logits, position, history, nullptr, mask);
      ASSERT_TRUE(sample.ok()) << sample.status();
      EXPECT_EQ(sample->id, sampler.Pick(restricted, position, history)->id);
    }
  }
}

TEST(SamplerTest, AMaskMayBeShorterThanTheLogitsAndMustAllowSomething) {
  Sampler sampler = Sampler::Create({.logprobs = true}).value();
  std::vector<float> logits(70, 0.0f);
  logits[66] = 5;
  logits[3] = 1;
  EXPECT_EQ(sampler.Pick(logits, 0, {}, nullptr, std::vector<uint32_t>{~0u})->id, 3);
  EXPECT_LT(sampler.Pick(logits, 0, {}, nullptr, std::vector<uint32_t>{~0u})->logprob, -3)
      << "of all tokens";
  EXPECT_EQ(sampler.Pick(logits, 0, {}, nullptr, std::vector<uint32_t>{0, 0, 0}).status().code(),
            absl::StatusCode::kInternal);
}

TEST(SamplerTest, LogprobsAreOfTheModelsOwnDistribution) {
  const std::vector<float> logits = {std::log(0.2f) + 3, std::log(0.5f) + 3, std::log(0.3f) + 3};
  const Sample sample = Pick({.temperature = 0.3f,
                              .top_k = 1,
                              .repetition_penalty = 1.5f,
                              .logprobs = true,
                              .top_logprobs = 2},
                             logits, 0, {0});
  EXPECT_EQ(sample.id, 1);
  EXPECT_NEAR(sample.logprob, std::log(0.5f), 1e-5);
  ASSERT_EQ(sample.top.size(), 2u);
  EXPECT_EQ(sample.top[0].id, 1);
  EXPECT_EQ(sample.top[1].id, 2);
  EXPECT_NEAR(sample.top[1].logprob, std::log(0.3f), 1e-5);
  EXPECT_EQ(Pick({.top_logprobs = 20}, logits).top.size(), 3u);
}

TEST(SamplerTest, AbsurdValuesNameTheirField) {
  const auto refused = [](const SamplingParams& params, std::string_view field) {
    const absl::Status status = Validate(params);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << field;
    EXPECT_EQ(status.message().find(absl::string_view(field.data(), field.size())), 0u) << status;
    EXPECT_FALSE(Sampler::Create(params).ok());
  };
  for (const float bad : {kNan, -1.0f, kInf, 10.1f}) refused({.temperature = bad}, "temperature");
  refused({.top_k = -1}, "top_k");
  for (const float bad : {kNan, 0.0f, -0.5f, 1.5f}) refused({.top_p = bad}, "top_p");
  for (const float bad : {kNan, -0.5f, 1.5f}) refused({.min_p = bad}, "min_p");
  for (const float bad : {kNan, 0.0f, -1.0f, 11.0f, kInf}) {
    refused({.repetition_penalty = bad}, "repetition_penalty");
  }
  refused({.repetition_window = -1}, "repetition_window");
  refused({.top_logprobs = 21}, "top_logprobs");
  EXPECT_TRUE(Validate({}).ok());
}

TEST(SamplerTest, BrokenLogitsAreErrors) {
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler = Sampler::Create({.temperature = temperature}).value();
    const std::vector<float> nan = {0.0f, kNan};
    const absl::Status status = sampler.Pick(nan, 0, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_NE(status.message().find("logit 1"), absl::string_view::npos) << status;
    const std::vector<float> infinite = {kInf, 0.0f};
    EXPECT_FALSE(sampler.Pick(infinite, 0, {}).ok());
    const std::vector<float> none = {-kInf, -kInf};
    EXPECT_FALSE(sampler.Pick(none, 0, {}).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(sampler.Pick({}, 0, {}).status()));
  }
}

TEST(SamplerTest, WhatEndsAnAnswerIsNotPenalised) {
  const std::vector<float> logits = {5, 4.9f, 0};
  SamplingParams params{.repetition_penalty = 2};
  EXPECT_EQ(Pick(params, logits, 0, {0}).id, 1);
  params.unpenalized = {0};
  EXPECT_EQ(Pick(params, logits, 0, {0, 1}).id, 0);
  EXPECT_EQ(Pick(params, {4.9f, 5, 0}, 0, {0, 1}).id, 0) << "others are";
}

TEST(SamplerTest, ABiasIsAddedAndItsLowestForbids) {
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(Pick({.logit_bias = {{2, 2.5f}}}, logits).id, 2);
  EXPECT_EQ(Pick({.logit_bias = {{0, -1.5f}}}, logits).id, 1);
  EXPECT_EQ(Pick({.logit_bias = {{0, -100}, {9, 100}}}, logits).id, 1);  // there is no token 9
  const SamplingParams hot{.temperature = 10, .logit_bias = {{0, -100}}};
  EXPECT_EQ(Reachable(hot, logits), (std::set<int32_t>{1, 2}));
  Sampler none = Sampler::Create({.logit_bias = {{0, -100}, {1, -100}, {2, -100}}}).value();
  EXPECT_EQ(none.Pick(logits, 0, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SamplerTest, PenaltiesCountTheAnswersTokensAlone) {
  const std::vector<float> logits = {3, 2, 1};
  const std::vector<int32_t> history = {0, 0, 1, 0, 2};
  // The answer is 1, 0, 2 or 0, 2.
  EXPECT_EQ(Pick({.presence_penalty = 1.5f, .prompt_tokens = 3}, logits, 5, history).id, 1);
  EXPECT_EQ(Pick({.presence_penalty = 1.5f, .prompt_tokens = 2}, logits, 5, history).id, 0);
  EXPECT_EQ(Pick({.frequency_penalty = 0.6f, .prompt_tokens = 3}, logits, 5, history).id, 0);
  EXPECT_EQ(Pick({.frequency_penalty = 0.6f}, logits, 5, history).id, 1);
  EXPECT_EQ(Pick({.frequency_penalty = -2, .prompt_tokens = 4}, logits, 5, history).id, 0);
  // A token that is never penalised, and a history that is only the latest part.
  EXPECT_EQ(
      Pick({.presence_penalty = 2, .prompt_tokens = 3, .unpenalized = {0}}, logits, 5, history).id,
      0);
  EXPECT_EQ(Pick({.presence_penalty = 1.5f, .prompt_tokens = 3}, logits, 5, {0, 2}).id, 1);
}

TEST(SamplerTest, PenaltiesAndBiasesHaveRanges) {
  for (const SamplingParams& wrong :
       {SamplingParams{.presence_penalty = 2.1f}, SamplingParams{.frequency_penalty = kNan},
        SamplingParams{.logit_bias = {{0, -101}}}, SamplingParams{.logit_bias = {{0, kNan}}}}) {
    EXPECT_EQ(Validate(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace withy::engine
