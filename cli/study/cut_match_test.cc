#include "cli/study/cut_match.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "cli/study/figures.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

std::vector<float> Logits(int seed, int count = 200) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<float> logits;
  for (int i = 0; i < count; ++i) {
    logits.push_back(static_cast<float>(std::normal_distribution<>(0, 2.5)(random)));
  }
  return logits;
}

std::vector<SortedProbabilities> Distributions() {
  std::vector<SortedProbabilities> all;
  for (int seed = 0; seed < 8; ++seed) all.push_back(SortedSoftmax(Logits(seed)));
  return all;
}

TEST(CutMatchTest, SoftmaxIsSortedAndWhole) {
  const SortedProbabilities p = SortedSoftmax(Logits(1));
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += p[i];
    EXPECT_LE(p[i], i > 0 ? p[i - 1] : 1);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_TRUE(SortedSoftmax({}).empty());
}

// What the engine's sampler draws with a setting: probabilities in the order of `p`.
std::vector<double> DrawnFrom(CutKind kind, const engine::SamplingParams& params,
                              const SortedProbabilities& p) {
  std::vector<double> q;
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    bool kept = true;
    if (kind == CutKind::kTopK) kept = i < static_cast<size_t>(params.top_k);
    if (kind == CutKind::kTopP) kept = sum < static_cast<double>(params.top_p);
    if (kind == CutKind::kMinP) kept = p[i] >= static_cast<double>(params.min_p) * p[0];
    sum += p[i];
    q.push_back(!kept ? 0
                : kind == CutKind::kTemperature
                    ? std::pow(p[i], 1 / static_cast<double>(params.temperature))
                    : p[i]);
  }
  return q;
}

TEST(CutMatchTest, DivergencesAreThoseOfTheDefinition) {
  const SortedProbabilities p = SortedSoftmax(Logits(3));
  for (const CutKind kind : kCutKinds) {
    double before = 0;
    for (const double x : {0.0, 0.1, 0.3, 0.6, 0.9}) {
      const engine::SamplingParams params = CutParams(kind, x, p.size());
      ASSERT_TRUE(engine::Validate(params).ok()) << CutName(kind, params);
      const double divergence = CutDivergence(kind, params, p);
      EXPECT_NEAR(divergence, Divergence(DrawnFrom(kind, params, p), p), 1e-6)
          << CutName(kind, params);
      EXPECT_GE(divergence, before - 1e-9) << "grows with x: " << CutName(kind, params);
      before = divergence;
    }
    EXPECT_NEAR(CutDivergence(kind, CutParams(kind, 0, p.size()), p), 0, 1e-6);
  }
}

// The sampler keeps as many tokens as the divergence assumes.
TEST(CutMatchTest, TheSamplerDrawsAsAssumed) {
  const std::vector<float> logits = Logits(5, 20);
  const SortedProbabilities p = SortedSoftmax(logits);
  for (const CutKind kind : kCutKinds) {
    engine::SamplingParams params = CutParams(kind, 0.3, p.size());
    params.seed = 9;
    auto sampler = engine::Sampler::Create(params);
    ASSERT_TRUE(sampler.ok());
    std::map<int32_t, int> drawn;
    constexpr int kDrawn = 20000;
    for (uint64_t i = 0; i < kDrawn; ++i) ++drawn[sampler->Pick(logits, i, {})->id];
    std::vector<double> counts;
    for (const auto& [id, count] : drawn) counts.push_back(count);
    std::sort(counts.begin(), counts.end(), std::greater<>());
    counts.resize(p.size());
    EXPECT_NEAR(Divergence(counts, p), CutDivergence(kind, params, p), 0.03)
        << CutName(kind, params);
  }
}

TEST(CutMatchTest, AMatchComesToItsTarget) {
  const std::vector<SortedProbabilities> distributions = Distributions();
  for (const double target : {0.05, 0.3, 0.8}) {
    for (const CutKind kind : kCutKinds) {
      double reached = 0;
      const engine::SamplingParams params = MatchCut(kind, target, distributions, &reached);
      // top-k has whole numbers only, min-p and top-p leave whole tokens.
      EXPECT_NEAR(reached, target, kind == CutKind::kTopK ? 0.3 * target : 0.1 * target)
          << CutName(kind, params);
    }
  }
}

}  // namespace
}  // namespace withy::cli
