#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "bench/contexts/contestants.h"
#include "bench/contexts/contexts_figures.h"
#include "bench/contexts/contexts_trace.h"

namespace withy::bench {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

std::vector<double> CallShares(const std::vector<ContextCall>& calls, uint32_t contexts) {
  std::vector<double> shares(contexts, 0);
  for (const ContextCall& call : calls) {
    shares[call.context] += 1.0 / static_cast<double>(calls.size());
  }
  return shares;
}

// Share of calls on the context of the call before.
double Repeats(const std::vector<ContextCall>& calls) {
  double repeats = 0;
  for (size_t i = 1; i < calls.size(); ++i) repeats += calls[i].context == calls[i - 1].context;
  return repeats / static_cast<double>(calls.size() - 1);
}

constexpr SwitchPattern kPatterns[] = {SwitchPattern::kRandom, SwitchPattern::kMarkov,
                                       SwitchPattern::kGaussian};

TEST(ContextTraceTest, CallsAreAPoissonProcessOfTheRateAskedFor) {
  for (const SwitchPattern pattern : kPatterns) {
    const auto calls = DrawContextTrace({.pattern = pattern, .hours = 7200, .mean_gap_s = 300});
    const double expected = 7200 * 12.0;
    EXPECT_NEAR(static_cast<double>(calls.size()), expected, 5 * std::sqrt(expected));
    // Of exponential gaps, the standard deviation is the mean.
    double square = 0, before = 0;
    for (const ContextCall& call : calls) {
      EXPECT_GT(call.time_s, before);
      square += (call.time_s - before) * (call.time_s - before);
      before = call.time_s;
    }
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(calls.size()) / 2), 300, 10);
    EXPECT_LT(before, 7200 * 3600.0);
  }
}

TEST(ContextTraceTest, DeltasAreThoseOfTheContextsDataset) {
  const auto calls = DrawContextTrace({.contexts = 16, .hours = 720});
  std::map<uint32_t, std::set<uint32_t>> seen;
  for (const ContextCall& call : calls) seen[call.context].insert(call.delta_tokens);
  ASSERT_EQ(seen.size(), 16u);
  for (const auto& [context, deltas] : seen) {
    const ContextDataset& dataset = ContextDatasets()[context % kContextDatasets];
    EXPECT_GE(*deltas.begin(), dataset.low_tokens) << dataset.name;
    EXPECT_LE(*deltas.rbegin(), dataset.high_tokens) << dataset.name;
    const double span = dataset.high_tokens - dataset.low_tokens;
    EXPECT_LE(*deltas.begin() - dataset.low_tokens, span / 10) << "the whole range is drawn";
    EXPECT_LE(dataset.high_tokens - *deltas.rbegin(), span / 10);
  }
}

TEST(ContextTraceTest, RandomCallsEachContextEquallyOften) {
  const auto calls = DrawContextTrace({.contexts = 5, .hours = 7200});
  for (const double share : CallShares(calls, 5)) EXPECT_THAT(share, DoubleNear(0.2, 0.01));
  EXPECT_THAT(Repeats(calls), DoubleNear(0.2, 0.01));
}

TEST(ContextTraceTest, MarkovPrefersWhatWasUsedLately) {
  const auto calls =
      DrawContextTrace({.pattern = SwitchPattern::kMarkov, .contexts = 4, .hours = 7200});
  // Weights 1, 1/2, 1/3, 1/4 by recency.
  EXPECT_THAT(Repeats(calls), DoubleNear(1 / (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0), 0.01));
  for (const double share : CallShares(calls, 4)) {
    EXPECT_THAT(share, DoubleNear(0.25, 0.02)) << "in the long run no context is preferred";
  }
}

TEST(ContextTraceTest, GaussianPrefersModerateCalls) {
  const auto calls = DrawContextTrace(
      {.pattern = SwitchPattern::kGaussian, .contexts = kContextDatasets, .hours = 7200});
  const std::vector<double> shares = CallShares(calls, kContextDatasets);
  const size_t summary = 1;  // by far the longest
  for (size_t i = 0; i < shares.size(); ++i) {
    EXPECT_TRUE(i == summary || shares[i] > 2 * shares[summary]) << i;
  }
  // Its mean, 350, is nearer to the mean of all, 526, than 55.
  EXPECT_GT(shares[0], shares[5]);
}

TEST(ContextTraceTest, TheSeedDecides) {
  for (const SwitchPattern pattern : kPatterns) {
    const auto times = [&](uint64_t seed) {
      std::vector<double> all;
      for (const ContextCall& call : DrawContextTrace({.pattern = pattern, .seed = seed})) {
        all.push_back(call.time_s + call.context + call.delta_tokens);
      }
      return all;
    };
    EXPECT_EQ(times(7), times(7));
    EXPECT_NE(times(7), times(8));
  }
}

TEST(ContextTraceTest, OneContextIsPossible) {
  for (const SwitchPattern pattern : kPatterns) {
    const auto calls = DrawContextTrace({.pattern = pattern, .contexts = 1});
    EXPECT_GT(calls.size(), 500u);
    for (const ContextCall& call : calls) EXPECT_EQ(call.context, 0u);
  }
}

TEST(ContextTraceTest, PatternsHaveNames) {
  for (const SwitchPattern pattern : kPatterns) {
    EXPECT_EQ(*FindSwitchPattern(SwitchPatternName(pattern)), pattern);
  }
  const absl::Status unknown = FindSwitchPattern("zipf").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("gaussian"));
}

TEST(ContextFiguresTest, LatenciesAreSummed) {
  std::vector<double> ms;
  for (int i = 200; i >= 1; --i) ms.push_back(i);
  const LatencySummary summary = SummarizeLatencies(ms);
  EXPECT_EQ(summary.switches, 200u);
  EXPECT_DOUBLE_EQ(summary.mean_ms, 100.5);
  EXPECT_DOUBLE_EQ(summary.p50_ms, 100);
  EXPECT_DOUBLE_EQ(summary.p99_ms, 198);
  EXPECT_DOUBLE_EQ(summary.max_ms, 200);
  EXPECT_DOUBLE_EQ(SummarizeLatencies({3}).p99_ms, 3);
  EXPECT_EQ(SummarizeLatencies({}).switches, 0u);
}

TEST(ContextFiguresTest, RecomputeCostsAreFitted) {
  const RecomputeCost exact{.row_ms = 2.5, .position_ms = 0.001};
  std::vector<RecomputeSample> samples;
  for (const uint32_t first : {0u, 1024u, 3000u}) {
    samples.push_back({first, 128, exact.Ms(first, 128)});
  }
  const RecomputeCost fitted = FitRecomputeCost(samples);
  EXPECT_NEAR(fitted.row_ms, exact.row_ms, 1e-9);
  EXPECT_NEAR(fitted.position_ms, exact.position_ms, 1e-12);
  EXPECT_NEAR(fitted.Ms(0, 4096), fitted.Ms(0, 1000) + fitted.Ms(1000, 3096), 1e-6);
  EXPECT_EQ(fitted.Ms(7, 0), 0);
}

LatencySummary Mean(double ms) { return {.switches = 1, .mean_ms = ms}; }

TEST(ContextFiguresTest, KeysCompareMeansSettingBySetting) {
  const ContextSetting native{"gqa", "markov", 8, 25, 0};
  const ContextSetting slow{"gqa", "markov", 8, 25, 40};
  const ContextSetting mha{"mha", "markov", 8, 25, 0};
  const ContextResults results = {
      {native, {{"withy", Mean(2)}, {"lmk", Mean(4000)}, {"swap", Mean(40)}, {"vllm-sq", Mean(8)}}},
      {slow, {{"withy", Mean(10)}, {"lmk", Mean(50)}, {"swap", Mean(50)}, {"vllm-sq", Mean(20)}}},
      {mha, {{"withy", Mean(10)}, {"vllm-s", Mean(9)}}}};
  const ContextKeys keys = CompareStrategies(results);
  EXPECT_DOUBLE_EQ(*keys.lmk_speedup, 2000);
  EXPECT_DOUBLE_EQ(*keys.swap_speedup, 10);
  EXPECT_NEAR(*keys.vllm_sq_speedup, std::sqrt(8), 1e-9);
  EXPECT_DOUBLE_EQ(*keys.vllm_sq_speedup_best, 4);
  EXPECT_DOUBLE_EQ(*keys.worst_vs_best_baseline, 0.9);
  EXPECT_EQ(keys.worst_setting, "vllm-s: mha, markov, 8 contexts, arena 25 %, disk as it is");
}

TEST(ContextFiguresTest, ContextsWithinALatencyAreCounted) {
  ContextSetting setting{"gqa", "markov", 2, 25, 0};
  ContextResults results;
  for (const uint32_t contexts : {2u, 4u, 8u}) {
    setting.contexts = contexts;
    results[setting] = {{"withy", Mean(contexts)}, {"swap", Mean(contexts * 4.0)}};
  }
  setting.contexts = 0;
  const auto within = ContextsWithin(results, 5);
  ASSERT_EQ(within.size(), 1u);
  EXPECT_EQ(within.at(setting).at("withy"), 4u);
  EXPECT_EQ(within.at(setting).at("swap"), 0u);
}

TEST(ContextFiguresTest, WhatWasNotMeasuredHasNoKey) {
  const ContextKeys keys = CompareStrategies(
      {{ContextSetting{"mha", "random", 2, 25, 0}, {{"withy", Mean(1)}, {"lmk", Mean(3)}}}});
  EXPECT_FALSE(keys.lmk_speedup.has_value()) << "it is for gqa";
  EXPECT_FALSE(keys.swap_speedup.has_value());
  EXPECT_FALSE(keys.vllm_sq_speedup_best.has_value());
  EXPECT_DOUBLE_EQ(*keys.worst_vs_best_baseline, 3);
}

TEST(ContestantTest, OursIsTheServicesAndOthersAreFoundByName) {
  EXPECT_EQ(FindContestant("withy")->store, policy::KvStrategy());
  const absl::Status unknown = FindContestant("vllm").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  for (const char* name : {"llms", "lmk", "swap", "vllm-s", "vllm-sq", "cake", "llms-uniform",
                           "withy-8bit", "withy-read", "withy-lazy", "withy-whole"}) {
    const auto found = FindContestant(name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->name, name);
    EXPECT_NE(std::string(unknown.message()).find(name), std::string::npos);
    const Contestant ours;
    EXPECT_TRUE(found->store != ours.store || found->computes_meanwhile != ours.computes_meanwhile)
        << name;
  }
}

}  // namespace
}  // namespace withy::bench
