// The LibTorch network equals the engine's, both heads learn, and an interrupted run ends like an
// uninterrupted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/cpu/thread_pool.h"
#include "engine/encoder/testing.h"
#include "engine/encoder/tlm.h"
#include "engine/encoder/weights.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"
#include "offline/tlm/job.h"
#include "offline/tlm/stages.h"

namespace withy::tlm {
namespace {

using engine::TlmCheckpoint;

// Without bottlenecks, with layer norm and a pooler: everything SmallShape() is not.
engine::TlmShape PlainShape() {
  engine::TlmShape shape = engine::SmallShape();
  shape.encoder.use_bottleneck = false;
  shape.encoder.shared_qk = false;
  shape.encoder.bottleneck = shape.encoder.hidden;
  shape.encoder.norm = engine::EncoderNorm::kLayerNorm;
  shape.encoder.epsilon = 1e-3f;
  shape.pooler = true;
  shape.decision_layers = 2;
  return shape;
}

class TlmTrainTest : public testing::Test {
 protected:
  TlmTrainTest() : folder_("tlm_train") { UseThreads(1); }

  std::unique_ptr<engine::Tokenizer> TokenizerOf(const TlmCheckpoint& tlm) {
    const std::string path = folder_ / "tokenizer.gguf";
    EXPECT_TRUE(engine::WriteTlm(tlm, engine::GgmlType::kF32, path).ok());
    const auto file = engine::GgufFile::Open(path);
    return engine::MakeTokenizer(*file).value();
  }

  engine::TempFolder folder_;
};

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 0;
  for (const float x : b) largest = std::max(largest, std::fabs(double{x}));
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * largest) << i;
}

TEST_F(TlmTrainTest, TheNetworkComputesWhatTheEngineComputes) {
  engine::TlmShape bottleneck_attention = engine::SmallShape();
  bottleneck_attention.encoder.bottleneck_attention = true;
  bottleneck_attention.encoder.trigram = false;
  for (const engine::TlmShape& shape : {engine::SmallShape(), PlainShape(), bottleneck_attention}) {
    const TlmCheckpoint tlm = engine::SmallTlm(5, shape);
    const std::string path = folder_ / "tlm.gguf";
    ASSERT_TRUE(engine::WriteTlm(tlm, engine::GgmlType::kF32, path).ok());
    const auto file = engine::GgufFile::Open(path);
    const auto weights = engine::LoadTlmWeights(*file);
    ASSERT_TRUE(weights.ok()) << weights.status();
    engine::ThreadPool pool(1);
    engine::Encoder encoder(**weights, &pool, engine::DefaultKernels());
    std::vector<std::vector<int32_t>> windows;
    for (const int32_t length : {4, 37, 64, 5}) {
      std::vector<int32_t>& window = windows.emplace_back();
      for (int32_t i = 0; i < length; ++i) {
        window.push_back((i * 7 + length) % shape.encoder.vocab);
      }
    }
    engine::EncoderOutput wanted;
    ASSERT_TRUE(encoder.Run(windows, &wanted).ok());
    const engine::EncoderOutput ours = RunNetwork(tlm, windows);
    ExpectNear(ours.keep, wanted.keep, 2e-4);
    ExpectNear(ours.prompt, wanted.prompt, 2e-4);
    ExpectNear(ours.model, wanted.model, 2e-4);
  }
}

// The worth of each word; "cat" is worth more after "the".
float Worth(const std::string& word, const std::string& before) {
  if (word == "cat") return before == "the" ? 1.0f : 0.6f;
  const std::map<std::string, float> worth = {{"the", 0.3f}, {"sat", 0.5f}, {"on", 0.1f},
                                              {"a", 0.2f},   {"mat", 0.8f}, {"unable", 0.4f}};
  return worth.at(word);
}

std::vector<ScoreExample> ToyScores() {
  std::vector<ScoreExample> examples;
  for (const char* text : {"the cat sat on a mat", "a cat on the mat", "on the mat the cat sat",
                           "unable a cat sat", "the mat a cat", "sat on the cat"}) {
    ScoreExample& example = examples.emplace_back();
    example.text = text;
    example.words = engine::SplitWords(text);
    std::string before;
    for (const engine::ByteSpan& span : example.words) {
      const std::string word = example.text.substr(span.begin, span.end - span.begin);
      example.keep.push_back(Worth(word, before));
      before = word;
    }
    example.keep.back() = -1;
  }
  return examples;
}

StageOptions QuickOptions(int64_t steps) {
  StageOptions options;
  options.steps = steps;
  options.batch = 4;
  options.rate = 3e-3;
  return options;
}

TEST_F(TlmTrainTest, TheScoreHeadLearnsItsLabels) {
  const std::vector<ScoreExample> examples = ToyScores();
  TlmCheckpoint tlm = engine::SmallTlm(3, PlainShape());
  const auto tokenizer = TokenizerOf(tlm);
  StageOptions options = QuickOptions(150);
  ASSERT_TRUE(TrainScore(*tokenizer, examples, options, &tlm).ok());
  EXPECT_GT(RankCorrelation(*tokenizer, examples, tlm).value(), 0.9);
}

TEST_F(TlmTrainTest, AFrozenBottomStays) {
  const TlmCheckpoint before = engine::SmallTlm(3, PlainShape());
  TlmCheckpoint tlm = before;
  const auto tokenizer = TokenizerOf(tlm);
  StageOptions options = QuickOptions(3);
  options.train_bottom = false;
  ASSERT_TRUE(TrainScore(*tokenizer, ToyScores(), options, &tlm).ok());
  for (size_t i = 0; i < tlm.tensors.size(); ++i) {
    const std::string& name = tlm.tensors[i].spec.name;
    if (name.ends_with("attn_k.bias")) continue;  // has no effect: its gradient is a rounding error
    EXPECT_EQ(tlm.tensors[i].values != before.tensors[i].values, name.starts_with("score."))
        << name;
  }
}

TEST_F(TlmTrainTest, AnInterruptedStageEndsAsAWholeOne) {
  const auto tokenizer = TokenizerOf(engine::SmallTlm(3, PlainShape()));
  StageOptions options = QuickOptions(20);
  options.checkpoint_steps = 8;
  TlmCheckpoint whole = engine::SmallTlm(3, PlainShape());
  ASSERT_TRUE(TrainScore(*tokenizer, ToyScores(), options, &whole).ok());
  TlmCheckpoint resumed = engine::SmallTlm(3, PlainShape());
  options.progress_file = folder_ / "score.pt";
  options.report = [](int64_t step, double) { return step < 11; };
  EXPECT_EQ(TrainScore(*tokenizer, ToyScores(), options, &resumed).code(),
            absl::StatusCode::kCancelled);
  options.report = nullptr;
  ASSERT_TRUE(TrainScore(*tokenizer, ToyScores(), options, &resumed).ok());
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    EXPECT_EQ(whole.tensors[i].values, resumed.tensors[i].values) << whole.tensors[i].spec.name;
  }
}

TEST_F(TlmTrainTest, BeginsWithAFileOrWithMobileBert) {
  const DecisionSpace space{
      .prompt_levels = {50, 100}, .model_levels = {20, 60, 100}, .flops = {}, .bytes = {}};
  const auto imported = OpenTlmToStartFrom("tests/golden/data/mobilebert_plain", space, 1);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->shape.model_levels, space.model_levels);
  EXPECT_EQ(imported->shape.prompt_levels, space.prompt_levels);
  const std::string path = folder_ / "tlm.gguf";
  ASSERT_TRUE(engine::WriteTlm(*imported, engine::GgmlType::kF32, path).ok());
  const auto read = OpenTlmToStartFrom(path, space, 1);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tensors.front().values, imported->tensors.front().values);
  DecisionSpace other = space;
  other.model_levels = {100};
  EXPECT_EQ(OpenTlmToStartFrom(path, other, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

// Some texts need the whole prompt and only the smallest model. Texts with "unable" need a larger
// model and at most half of the prompt.
struct ToyDecisions {
  DecisionSpace space{.prompt_levels = {50, 100},
                      .model_levels = {20, 60, 100},
                      .flops = {0.2, 0.6, 1},
                      .bytes = {0.2, 0.6, 1}};
  std::vector<DecisionExample> examples;
  std::vector<double> mean_right;

  ToyDecisions() {
    std::vector<DecisionRow> rows;
    for (const char* text : {"the cat sat", "a cat on a mat", "the cat sat on the mat",
                             "unable the mat sat", "sat on unable", "unable a mat on b"}) {
      const bool hard = std::string(text).find("unable") != std::string::npos;
      DecisionRow row{.tokens = {4, 20}, .right = {0, 0, 0, 1, 1, 1}};
      if (hard) row.right = {0, 1, 1, 0, 1, 1};
      rows.push_back(row);
      examples.push_back({text, row});
    }
    mean_right = MeanRight(space, rows);
  }
};

TEST_F(TlmTrainTest, TheDecisionHeadLearnsTheTableAndNothingElseMoves) {
  const ToyDecisions toy;
  const TlmCheckpoint before = engine::SmallTlm(3, PlainShape());
  TlmCheckpoint tlm = before;
  const auto tokenizer = TokenizerOf(tlm);
  StageOptions options = QuickOptions(400);
  options.batch = 6;
  ASSERT_TRUE(
      TrainDecision(*tokenizer, toy.space, toy.examples, toy.mean_right, options, &tlm).ok());
  const DecisionScores scores =
      ScoreDecisions(*tokenizer, toy.space, toy.examples, toy.mean_right, tlm).value();
  EXPECT_GT(scores.oracle, scores.fixed + 0.1);
  EXPECT_GT(scores.tlm, scores.oracle - 0.05);
  const auto slo = engine::SloTokenIds(tlm.vocab, 10, "test").value();
  const auto width = static_cast<size_t>(tlm.shape.encoder.embedding);
  for (size_t i = 0; i < tlm.tensors.size(); ++i) {
    const std::string& name = tlm.tensors[i].spec.name;
    if (name.starts_with("decision.")) continue;
    for (size_t v = 0; v < tlm.tensors[i].values.size(); ++v) {
      const bool slo_row =
          name == "token_embd.weight" && std::find(slo.begin(), slo.end(), v / width) != slo.end();
      if (slo_row) continue;
      ASSERT_EQ(tlm.tensors[i].values[v], before.tensors[i].values[v]) << name;
    }
  }
  EXPECT_NE(tlm.tensors[0].values, before.tensors[0].values) << "SLO tokens are trained";
}

// Before training the predictions are the means over all prompts.
TEST_F(TlmTrainTest, TheDecisionHeadStartsNoWorseThanOnePairAnSlo) {
  const ToyDecisions toy;
  TlmCheckpoint tlm = engine::SmallTlm(3, PlainShape());
  const auto tokenizer = TokenizerOf(tlm);
  StageOptions options = QuickOptions(1);
  options.rate = 1e-9;
  ASSERT_TRUE(
      TrainDecision(*tokenizer, toy.space, toy.examples, toy.mean_right, options, &tlm).ok());
  const DecisionScores scores =
      ScoreDecisions(*tokenizer, toy.space, toy.examples, toy.mean_right, tlm).value();
  EXPECT_EQ(scores.tlm, scores.fixed);
}

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A complete run on the shipped pocket model with levels. Completed work is not repeated, and lost
// work is recomputed identically.
TEST_F(TlmTrainTest, ARunMakesATlmThatTheEngineReads) {
  JobOptions options;
  options.model = "models/withy-pocket-q8_0.gguf";
  options.out = folder_ / "tlm.gguf";
  options.run = folder_ / "run";
  options.records = 10;
  options.vocab_records = 100;
  options.score_steps = 3;
  options.decision_steps = 3;
  options.batch = 2;
  options.max_variants = 4;
  options.threads = 2;
  options.model_options.cache_dir = folder_ / "";
  const auto file = engine::GgufFile::Open(options.model);
  ASSERT_TRUE(file.ok()) << file.status();
  const engine::ModelShape shape = engine::ReadShape(*file).value();
  options.model_options.levels = {engine::PlanLevel(shape, 40, {})};
  std::vector<std::string> said;
  options.say = [&said](const std::string& line) { said.push_back(line); };

  options.score = false;
  EXPECT_EQ(RunJob(options).code(), absl::StatusCode::kNotFound);
  options.score = true;
  const absl::Status status = RunJob(options);
  ASSERT_TRUE(status.ok()) << status;
  auto tlm = engine::Tlm::Open(options.out, {});
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  EXPECT_EQ((*tlm)->shape().model_levels, (std::vector<int32_t>{40, 100}));
  EXPECT_TRUE((*tlm)->Read("Is Ann at home?", {.ttft_ratio = 0.4, .tpot_ratio = 0.7}).ok());

  const std::string out = Bytes(options.out);
  const std::string table = Bytes(folder_ / "run/decision_table.jsonl");
  options.progress = [](const std::string& what, int64_t, int64_t) {
    ADD_FAILURE() << "done again: " << what;
  };
  ASSERT_TRUE(RunJob(options).ok());
  options.progress = nullptr;
  for (const char* lost : {"run/decision.gguf", "run/decision.pt"}) {
    ASSERT_TRUE(std::filesystem::remove(folder_ / lost)) << lost;
  }
  std::filesystem::resize_file(folder_ / "run/decision_table.jsonl", table.size() - 200);
  ASSERT_TRUE(RunJob(options).ok());
  EXPECT_EQ(Bytes(options.out), out);
  EXPECT_EQ(Bytes(folder_ / "run/decision_table.jsonl"), table);
  JobOptions other = options;
  other.seed = 2;
  EXPECT_EQ(RunJob(other).code(), absl::StatusCode::kFailedPrecondition);
  // Files are identified by content.
  other = options;
  other.labels = folder_ / "labels.jsonl";
  EXPECT_EQ(RunJob(other).code(), absl::StatusCode::kNotFound);
  std::ofstream(other.labels) << R"({"text": "a b", "keep": [1, 0]})"
                              << "\n";
  other.run = folder_ / "labelled";
  ASSERT_TRUE(RunJob(other).ok());
  EXPECT_THAT(Bytes(folder_ / "labelled/decision.made-of"), testing::HasSubstr(" model "));
  ASSERT_TRUE(RunJob(other).ok());
  std::ofstream(other.labels) << R"({"text": "a b", "keep": [0, 1]})"
                              << "\n";
  EXPECT_EQ(RunJob(other).code(), absl::StatusCode::kFailedPrecondition);
}

// For prompts without markup, as of any model: the model's own answers are the labels.
TEST_F(TlmTrainTest, ARunOnOwnPromptsNeedsNoCorpus) {
  JobOptions options;
  options.model = "models/withy-pocket-q8_0.gguf";
  options.out = folder_ / "tlm.gguf";
  options.run = folder_ / "run";
  options.prompts = folder_ / "prompts.jsonl";
  options.score_steps = 3;
  options.decision_steps = 3;
  options.batch = 2;
  options.max_variants = 4;
  options.model_options.cache_dir = folder_ / "";
  EXPECT_EQ(RunJob(options).code(), absl::StatusCode::kNotFound);
  std::ofstream out(options.prompts);
  const auto write = [&](int count) {
    for (int i = 0; i < count; ++i) {
      out << R"({"prompt": "Summarise: Ann asks Bob to bring )" << i + 2
          << R"( cakes to the party."})"
          << "\n";
    }
    out.flush();
  };
  write(3);
  EXPECT_THAT(std::string(RunJob(options).message()), testing::HasSubstr("at least 10 are needed"));
  write(9);
  options.run = folder_ / "more";
  std::vector<std::string> said;
  options.say = [&said](const std::string& line) { said.push_back(line); };
  const absl::Status status = RunJob(options);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, testing::Contains("12 of 12 prompts have an answer"));
  auto tlm = engine::Tlm::Open(options.out, {});
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  const engine::TlmShape& shape = (*tlm)->shape();
  EXPECT_FALSE(shape.model_id.empty());
  ASSERT_FALSE(shape.pair_accuracy.empty());
  EXPECT_EQ(shape.pair_accuracy.back(), 1) << "the full model agrees with itself";
  EXPECT_TRUE((*tlm)->Read("Is Ann at home?", {.ttft_ratio = 0.4, .tpot_ratio = 0.7}).ok());
  // Completed work is not repeated; other prompts are another run.
  options.progress = [](const std::string& what, int64_t, int64_t) {
    ADD_FAILURE() << "done again: " << what;
  };
  ASSERT_TRUE(RunJob(options).ok());
  write(1);
  EXPECT_EQ(RunJob(options).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace withy::tlm
