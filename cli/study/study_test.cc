// Runs the studies on a model of random weights: what they count and share is checked, times are
// only there.
#include "cli/study/study.h"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/study/profiled_model.h"
#include "cli/study/text_score.h"
#include "engine/model/synth.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class StudyTest : public ::testing::Test {
 protected:
  StudyTest() {
    std::filesystem::create_directories(directory_ + "/scratch");
    engine::SynthShape shape = *engine::FindSynthShape("tiny");
    layers_ = shape.layers;
    shape.levels = {50};
    EXPECT_TRUE(engine::WriteSynthModel(shape, engine::GgmlType::kF16, 1, Path("a.gguf")).ok());
    options_.models = {Path("a.gguf")};
    options_.model.cache_dir = directory_;
    options_.model.threads = 2;
    options_.scratch_dir = directory_ + "/scratch";
    options_.rounds = 2;
    options_.prompt_tokens = 20;
    options_.answer_tokens = 5;
    options_.sampling = {.temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.1f};
    options_.text_name = "a text";
  }
  ~StudyTest() override { std::filesystem::remove_all(directory_); }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  nlohmann::json Run(const std::string& study) {
    const auto report = RunStudy(study, options_);
    if (!report.ok()) {
      ADD_FAILURE() << report.status();
      return {};
    }
    for (const StudyPlot& plot : report->plots) {
      EXPECT_THAT(plot.svg, AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), Not(HasSubstr("nan"))));
    }
    EXPECT_TRUE(std::filesystem::is_empty(options_.scratch_dir) || study == "quantization");
    return nlohmann::json::parse(ReportJson(*report));
  }
  std::string Refusal(const std::string& study) {
    return std::string(RunStudy(study, options_).status().message());
  }

  const std::string directory_ = ::testing::TempDir() + "/withy_study_" + std::to_string(getpid());
  StudyOptions options_;
  int32_t layers_ = 0;
};

TEST_F(StudyTest, PhasesShareAnAnswer) {
  options_.levels = true;
  const nlohmann::json json = Run("phases");
  ASSERT_EQ(json["models"].size(), 2u) << "the level and the full model";
  EXPECT_LT(json["models"][0]["parameters_per_token"], json["models"][1]["parameters_per_token"]);
  std::map<std::string, int64_t> counts;
  double shares = 0;
  for (const auto& phase : json["phases"]) {
    if (phase["model"] != json["models"][1]["model"]) continue;
    counts[phase["phase"]] = phase["count"];
    shares += phase["share"]["median"].get<double>();
  }
  EXPECT_EQ(counts["prefill"], 1);
  EXPECT_EQ(counts["decode"], 4) << "the first token comes with the prompt";
  EXPECT_EQ(counts["embedding"], 5);
  EXPECT_EQ(counts["softmax"], 5);
  EXPECT_EQ(counts["copy_probs"], 5);
  EXPECT_EQ(counts["sampling"], 5);
  EXPECT_NEAR(shares, 1, 1e-6) << "medians of two rounds are their means";
}

TEST_F(StudyTest, KernelsAreCountedByPass) {
  options_.prompt_tokens = 200;
  const nlohmann::json json = Run("kernels");
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  for (const auto& row : json["kernels"]) {
    if (row["kernel"] != "idle") counts[{row["pass"], row["kernel"]}] = row["count_per_pass"];
  }
  for (const char* pass : {"prefill", "decode"}) {
    EXPECT_EQ((counts[{pass, "attend"}]), layers_) << pass;
    EXPECT_EQ((counts[{pass, "gate_up"}]), layers_) << pass;
    EXPECT_EQ((counts[{pass, "down"}]), layers_) << pass;
    EXPECT_EQ((counts[{pass, "head"}]), 1) << pass;
    EXPECT_EQ((counts[{pass, "embed"}]), 1) << pass;
  }
}

// Of short passes a worker records the kernels of one of several.
TEST_F(StudyTest, KernelsOfEveryPassAreRecorded) {
  const auto opened = OpenSubjects(options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ProfiledModel& model = *opened->models[0];
  constexpr int32_t kSteps = 300;
  ASSERT_TRUE(model.Reserve(kSteps).ok());
  const std::vector<int32_t> token = {1};
  for (int32_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(model.Run(token, step, -1, telemetry::Phase::kDecode).ok());
  }
  const auto times = model.Collect();
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_EQ(times->passes.size(), static_cast<size_t>(kSteps));
  for (const PassTimes& pass : times->passes) {
    ASSERT_EQ(pass.ops.size(), times->passes.front().ops.size());
    ASSERT_GT(pass.ops.size(), 4u * static_cast<size_t>(layers_));
  }
}

TEST_F(StudyTest, QuantizationComparesWithTheLeastQuantised) {
  options_.types = {"q8_0", "q4_0", "f32"};
  const nlohmann::json json = Run("quantization");
  std::vector<std::string> types;
  for (const auto& file : json["files"]) types.push_back(file["type"]);
  EXPECT_THAT(types, ElementsAre("F32", "F16", "Q8_0", "Q4_0"));
  EXPECT_EQ(json["files"][0]["divergence_nats"], 0);
  EXPECT_EQ(json["files"][0]["quality_ratio"], 1);
  EXPECT_NEAR(json["files"][0]["hq"]["median"], 1, 1e-9);
  EXPECT_LT(json["files"][1]["divergence_nats"], json["files"][3]["divergence_nats"]);
  EXPECT_LT(json["files"][2]["divergence_nats"], json["files"][3]["divergence_nats"]);
  EXPECT_GT(json["files"][3]["divergence_nats"], 0);
  for (const auto& file : json["files"]) {
    EXPECT_GT(file["hq"]["median"], 0);
    EXPECT_GT(file["perplexity"], 1);
  }
}

TEST_F(StudyTest, QuantizationRefusesWhatIsNotOneModel) {
  EXPECT_THAT(Refusal("quantization"), AllOf(HasSubstr("--model"), HasSubstr("--types")));
  engine::SynthShape other = *engine::FindSynthShape("tiny");
  other.vocab_size += 32;
  ASSERT_TRUE(engine::WriteSynthModel(other, engine::GgmlType::kQ8_0, 1, Path("b.gguf")).ok());
  options_.models.push_back(Path("b.gguf"));
  EXPECT_THAT(Refusal("quantization"),
              AllOf(HasSubstr("a.gguf"), HasSubstr("b.gguf"), HasSubstr("vocabularies"),
                    HasSubstr("types of their weights only")));
  other = *engine::FindSynthShape("tiny");
  other.layers += 1;
  ASSERT_TRUE(engine::WriteSynthModel(other, engine::GgmlType::kQ8_0, 1, Path("c.gguf")).ok());
  options_.models.back() = Path("c.gguf");
  EXPECT_THAT(Refusal("quantization"), HasSubstr("layers"));
}

TEST_F(StudyTest, ATextIsScoredAsItIsPredicted) {
  options_.models = {Path("a.gguf")};
  const auto opened = OpenSubjects(options_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ProfiledModel* model = opened->models[0].get();
  const std::vector<int32_t> tokens = model->Tokens(StudyText(options_), 100);
  ProfiledModel* const models[] = {model, model};
  const auto scores = ScoreText(models, tokens, nullptr, nullptr);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_TRUE(opened->log->Take()->empty()) << "a long text would fill the rings";
  ASSERT_EQ((*scores)[0].losses.size(), 49u) << "the second half, but for the first token behind";
  EXPECT_EQ((*scores)[1].divergence, 0);
  EXPECT_EQ((*scores)[1].agreed_share, 1);
  EXPECT_EQ((*scores)[0].losses, (*scores)[1].losses);
  // The last loss by hand: a pass over all tokens but the last.
  ASSERT_TRUE(model->Reserve(100).ok());
  ASSERT_TRUE(model->Run(std::span(tokens).first(99), 0, -1, telemetry::Phase::kPrefill).ok());
  double sum = 0;
  for (const float logit : model->logits()) sum += std::exp(static_cast<double>(logit));
  const double loss =
      std::log(sum) - static_cast<double>(model->logits()[static_cast<size_t>(tokens[99])]);
  EXPECT_NEAR((*scores)[0].losses.back(), loss, 1e-4);
  EXPECT_THAT(
      std::string(
          ScoreText(models, std::span(tokens).first(10), nullptr, nullptr).status().message()),
      HasSubstr("--text"));
}

TEST_F(StudyTest, SamplingMatchesLengths) {
  EXPECT_THAT(Refusal("sampling"), HasSubstr("--prompts"));
  for (int i = 0; i < 60; ++i) {
    std::string prompt = "word";
    for (int w = 0; w < i * i % 37; ++w) prompt += " and " + std::to_string(w);
    options_.prompts.push_back(prompt);
  }
  options_.whole_set = true;
  options_.share = 0.25;
  options_.bins = 8;
  const nlohmann::json json = Run("sampling");
  ASSERT_EQ(json["subsets"].size(), 2u);
  EXPECT_EQ(json["subsets"][0]["prompts"], 15);
  EXPECT_LT(json["subsets"][0]["divergence_nats"]["median"],
            json["subsets"][1]["divergence_nats"]["low"]);
  EXPECT_LT(json["subsets"][0]["length_error_median"], json["subsets"][1]["length_error_median"]);
  EXPECT_FALSE(json["subsets"][0]["prefill_error_median"].is_null());
  EXPECT_EQ(json["cuts"].size(), 12u) << "four settings at three divergences";
  options_.models.push_back(options_.models[0]);
  EXPECT_THAT(Refusal("sampling"), HasSubstr("one model"));
}

TEST_F(StudyTest, KvLengthMeasuresEachDepth) {
  options_.depths = {50, 1, 50, 150};
  const nlohmann::json json = Run("kv-length");
  std::vector<int> depths;
  for (const auto& row : json["depths"]) depths.push_back(row["kv_tokens"]);
  EXPECT_THAT(depths, ElementsAre(1, 50, 150));
  EXPECT_EQ(json["fits"].size(), 1u);
  options_.depths = {1 << 20};
  EXPECT_THAT(Refusal("kv-length"), AllOf(HasSubstr("--depths"), HasSubstr("a.gguf")));
}

TEST_F(StudyTest, IdleHasAnswersAndPauses) {
  options_.answer_tokens = 20;
  options_.pauses_s = {0, 0.005};
  const nlohmann::json json = Run("idle");
  ASSERT_EQ(json["answers"].size(), 2u);
  EXPECT_EQ(json["answers"][0]["answer_tokens"], 16);
  EXPECT_EQ(json["answers"][1]["answer_tokens"], 20);
  for (const auto& row : json["answers"]) {
    EXPECT_GE(row["idle_share"]["median"], 0);
    EXPECT_LT(row["idle_share"]["median"], 1);
  }
  ASSERT_EQ(json["pauses"].size(), 2u);
  EXPECT_EQ(json["pauses"][1]["pause_s"], 0.005);
  options_.pauses_s = {-1};
  EXPECT_THAT(Refusal("idle"), HasSubstr("--pauses"));
}

TEST_F(StudyTest, WhatCannotRunIsNamed) {
  EXPECT_THAT(Refusal("phase"), AllOf(HasSubstr("\"phase\""), HasSubstr("kv-length")));
  options_.prompt_tokens = 1 << 20;
  EXPECT_THAT(Refusal("phases"), AllOf(HasSubstr("a.gguf"), HasSubstr("--prompt-tokens")));
  options_.prompt_tokens = 20;
  std::atomic<bool> stop{true};
  options_.stop = &stop;
  EXPECT_EQ(RunStudy("phases", options_).status().code(), absl::StatusCode::kCancelled);
  options_.stop = nullptr;
  options_.models = {Path("none.gguf")};
  EXPECT_THAT(Refusal("phases"), HasSubstr("none.gguf"));
}

}  // namespace
}  // namespace withy::cli
