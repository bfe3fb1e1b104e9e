#include "engine/session/recommended_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/contract_limits.h"
#include "engine/gguf/writer.h"
#include "engine/sampling/sampler.h"

namespace withy::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RecommendedSampling Read(const std::function<void(GgufWriter&)>& fill) {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  fill(writer);
  const std::string path =
      testing::TempDir() + "/recommended_" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(writer.Write(path).ok());
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  RecommendedSampling read = ReadRecommendedSampling(*file);
  std::filesystem::remove(path);
  return read;
}

TEST(RecommendedSamplingTest, ReadsTheKeysThatLlamaCppReads) {
  const RecommendedSampling read = Read([](GgufWriter& w) {
    w.Set<float>("general.sampling.temp", 0.6f);
    w.Set<int32_t>("general.sampling.top_k", 20);
    w.Set<float>("general.sampling.top_p", 0.95f);
    w.Set<float>("general.sampling.min_p", 0.05f);
    w.Set<float>("general.sampling.penalty_repeat", 1.05f);
    w.Set<int32_t>("general.sampling.penalty_last_n", 32);
  });
  EXPECT_FLOAT_EQ(*read.temperature, 0.6f);
  EXPECT_EQ(*read.top_k, 20u);
  EXPECT_FLOAT_EQ(*read.top_p, 0.95f);
  EXPECT_FLOAT_EQ(*read.min_p, 0.05f);
  EXPECT_FLOAT_EQ(*read.repetition_penalty, 1.05f);
  EXPECT_EQ(*read.repetition_window, 32u);
  EXPECT_THAT(read.ignored, IsEmpty());
}

TEST(RecommendedSamplingTest, AFileThatSaysNothingRecommendsNothing) {
  EXPECT_FALSE(Read([](GgufWriter&) {}).any());
}

TEST(RecommendedSamplingTest, AnyNumericTypeWillDo) {
  EXPECT_EQ(
      *Read([](auto& w) { w.template Set<uint64_t>("general.sampling.temp", 1); }).temperature,
      1.0f);
  EXPECT_EQ(*Read([](auto& w) { w.template Set<double>("general.sampling.top_k", 40); }).top_k,
            40u);
  EXPECT_FLOAT_EQ(*Read([](auto& w) { w.SetString("general.sampling.top_p", "0.8"); }).top_p, 0.8f);
}

TEST(RecommendedSamplingTest, WhatSwitchesSomethingOffDoesSo) {
  const RecommendedSampling read = Read([](GgufWriter& w) {
    w.Set<float>("general.sampling.temp", -1);
    w.Set<int32_t>("general.sampling.top_k", -1);
    w.Set<float>("general.sampling.top_p", 1.5f);
    w.Set<float>("general.sampling.min_p", -0.5f);
    w.Set<int32_t>("general.sampling.penalty_last_n", -1);
  });
  EXPECT_EQ(*read.temperature, 0.0f);
  EXPECT_EQ(*read.top_k, 0u);
  EXPECT_EQ(*read.top_p, 1.0f);
  EXPECT_EQ(*read.min_p, 0.0f);
  EXPECT_EQ(*read.repetition_window, static_cast<uint32_t>(kMaxRepetitionWindow));
  EXPECT_THAT(read.ignored, IsEmpty());
}

TEST(RecommendedSamplingTest, WhatCannotBeIsNamedAndIgnored) {
  const RecommendedSampling read = Read([](GgufWriter& w) {
    w.Set<float>("general.sampling.temp", 11);
    w.SetString("general.sampling.top_k", "many");
    w.Set<float>("general.sampling.top_p", 0);
    w.Set<float>("general.sampling.min_p", 1);
    w.Set<float>("general.sampling.penalty_repeat", 0);
    w.Set<float>("general.sampling.penalty_last_n", std::numeric_limits<float>::quiet_NaN());
  });
  EXPECT_FALSE(read.any());
  EXPECT_THAT(read.ignored,
              ElementsAre(HasSubstr("sampling.temp = 11"), HasSubstr("top_k"),
                          HasSubstr("top_p = 0"), HasSubstr("min_p = 1"),
                          HasSubstr("penalty_repeat = 0"), HasSubstr("penalty_last_n = nan")));
}

}  // namespace
}  // namespace withy::engine
