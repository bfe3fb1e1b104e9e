// A mixture of experts that does not fit memory gives the bits of one that does: for prompts,
// single tokens and interleaved passes; what is used stays; and a disk that fails, lies or hangs
// costs a call and not the model.
#include "engine/weights/experts/expert_stream.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "engine/model/plan_weights.h"
#include "engine/model/testing.h"
#include "engine/weights/experts/breakable_disk.h"
#include "engine/weights/packer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kPromptTokens = 24;

class ExpertStreamTest : public testing::Test {
 protected:
  explicit ExpertStreamTest(const std::string& architecture = "qwen3moe",
                            GgmlType type = GgmlType::kQ8_0) {
    shape_ = *FindSynthShape("tiny-moe");
    shape_.architecture = architecture;
    if (FindArchitecture(architecture)->needs_window) shape_.sliding_window = 9;
    shape_.layers = 4;
    shape_.d_ff = 160;  // parts that are not whole pages
    shape_.experts = 16;
    shape_.vocab_size = 8192;  // large enough that rows of the embedding are read
    path_ = WriteTiny(folder_, shape_, type);
    const auto file = GgufFile::Open(path_);
    const auto layout = PlanLayout(*file);
    weights_ = std::make_unique<UnpackedWeights>(*layout);
    least_ = LeastWeightBudget(weights_->tensors, weights_->facts);
    all_ = layout->data_bytes;
    ModelOptions copied;
    copied.weight_place = ModelOptions::WeightPlace::kCopied;
    resident_ = OpenTiny(folder_, path_, copied);
  }

  // `share`: of the budget between the least and all of the weights.
  ModelOptions Options(double share) const {
    ModelOptions options;
    options.weight_budget_bytes =
        least_ + static_cast<uint64_t>(share * static_cast<double>(all_ - least_));
    return options;
  }
  std::unique_ptr<Model> OpenOn(BreakableDisk* disk, int64_t stall_ms = 10'000) {
    ModelOptions options = Options(0.3);
    options.stream.stall_ns = stall_ms * kNanosPerMilli;
    options.stream.make_queue = [shared = disk->shared()](uint32_t depth) {
      return std::make_unique<BreakableQueue>(depth, shared);
    };
    return OpenTiny(folder_, path_, options);
  }

  std::vector<int32_t> Tokens(uint32_t seed = 1) const {
    return SomeTokens(kPromptTokens, shape_.vocab_size, seed);
  }
  // Logits of a prompt in one pass, then of the same tokens one by one.
  static std::vector<float> Logits(Model& model, const std::vector<int32_t>& tokens) {
    std::vector<float> all =
        RunRows(model, ScratchKv(model.info(), kPromptTokens), PlainRows(tokens));
    const std::vector<float> single = OneByOne(model, tokens);
    all.insert(all.end(), single.begin(), single.end());
    return all;
  }
  static std::vector<float> OneByOne(Model& model, const std::vector<int32_t>& tokens) {
    std::vector<float> all;
    const ScratchKv kv(model.info(), kPromptTokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> row =
          RunRows(model, kv, PlainRows(std::span(tokens).subspan(i, 1), static_cast<int32_t>(i)));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  absl::Status Forward(Model& model, uint32_t seed) const {
    const std::vector<int32_t> tokens = Tokens(seed);
    const std::vector<Row> rows = PlainRows(tokens);
    const ScratchKv kv(model.info(), kPromptTokens);
    const ContextView view = kv.View();
    std::vector<float> logits(rows.size() * static_cast<size_t>(shape_.vocab_size));
    return model.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data());
  }
  void ExpectTheBitsAtEveryBudget() {
    const std::vector<float> want = Logits(*resident_, Tokens());
    for (const double share : {0.0, 0.1, 0.6, 0.8}) {
      const auto model = OpenTiny(folder_, path_, Options(share));
      ASSERT_NE(model, nullptr);
      EXPECT_TRUE(model->weight_stats().streams());
      for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(Logits(*model, Tokens()), want) << "share " << share << ", round " << round;
      }
      const WeightStreamStats stats = model->weight_stats();
      EXPECT_LE(stats.resident_bytes + stats.buffer_bytes, stats.budget_bytes);
      EXPECT_EQ(stats.failures, 0u);
      EXPECT_GT(stats.experts.chosen, stats.experts.in_memory + stats.experts.arriving);
      EXPECT_GT(stats.experts.in_memory, 0u);
      EXPECT_EQ(stats.experts.guessed > 0, share > 0.3)
          << "share " << share << ": guesses need room";
    }
  }
  void ExpectWorks(Model& model) const {
    for (const uint32_t seed : {1u, 2u}) {
      EXPECT_EQ(Logits(model, Tokens(seed)), Logits(*resident_, Tokens(seed)));
    }
  }

  TestFolder folder_;
  SynthShape shape_;
  std::string path_;
  std::unique_ptr<UnpackedWeights> weights_;
  uint64_t least_ = 0;
  uint64_t all_ = 0;
  std::unique_ptr<Model> resident_;
};

TEST_F(ExpertStreamTest, GivesTheBitsOfResidentExpertsAtEveryBudget) {
  ExpectTheBitsAtEveryBudget();
}

// Experts of 4 bits with biases.
class GptOssStreamTest : public ExpertStreamTest {
 protected:
  GptOssStreamTest() : ExpertStreamTest("gpt-oss", GgmlType::kMXFP4) {}
};

TEST_F(GptOssStreamTest, GivesTheBitsOfResidentExpertsAtEveryBudget) {
  ExpectTheBitsAtEveryBudget();
}

TEST_F(ExpertStreamTest, BufferedReadsGiveTheSame) {
  ModelOptions options = Options(0.2);
  options.stream.direct = false;
  const auto model = OpenTiny(folder_, path_, options);
  EXPECT_FALSE(model->weight_stats().direct);
  ExpectWorks(*model);
}

// Passes take each other's experts where there is room for those of one layer alone.
TEST_F(ExpertStreamTest, InterleavedPassesGiveTheSame) {
  const std::vector<int32_t> tokens = Tokens();
  const std::vector<int32_t> others = Tokens(5);
  const std::vector<float> want =
      RunRows(*resident_, ScratchKv(resident_->info(), kPromptTokens), PlainRows(tokens));
  const std::vector<float> other =
      RunRows(*resident_, ScratchKv(resident_->info(), kPromptTokens), PlainRows(others));
  for (const int threads : {1, 2}) {
    std::atomic<bool> stop = false;
    ModelOptions options = Options(0);
    options.threads = threads;
    options.hooks.layer_tap = [&stop](int32_t, std::span<const float>) { stop = true; };
    const auto model = OpenTiny(folder_, path_, options);
    const ScratchKv kv(model->info(), kPromptTokens);
    const ContextView view = kv.View();
    const std::vector<Row> rows = PlainRows(tokens);
    std::vector<float> logits(want.size());
    auto pass = model->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
    ASSERT_TRUE(pass.ok()) << pass.status();
    int left = 0;
    while (!(*pass)->Run(&stop)) {
      ASSERT_TRUE((*pass)->status().ok()) << (*pass)->status();
      ++left;
      EXPECT_EQ(RunRows(*model, ScratchKv(model->info(), kPromptTokens), PlainRows(others)), other);
      stop = false;
    }
    EXPECT_EQ(left, model->info().layers);
    EXPECT_EQ(logits, want) << threads << " threads";
  }
}

// A pass that is left between any two steps goes on with its experts.
TEST_F(ExpertStreamTest, APassThatIsLeftAtAnyTimeGivesTheSame) {
  const std::vector<int32_t> tokens = Tokens();
  const std::vector<float> want =
      RunRows(*resident_, ScratchKv(resident_->info(), kPromptTokens), PlainRows(tokens));
  const auto model = OpenTiny(folder_, path_, Options(0));
  const ScratchKv kv(model->info(), kPromptTokens);
  const ContextView view = kv.View();
  const std::vector<Row> rows = PlainRows(tokens);
  constexpr int kStops = 20;
  std::atomic<bool> stop = false;
  std::atomic<int> left = 0;  // passes that were left
  std::atomic<bool> ended = false;
  std::thread stops([&] {
    std::mt19937 random(TestSeed());
    while (!ended) {
      for (uint32_t waits = random() % 200; waits > 0 && !ended; --waits) std::this_thread::yield();
      if (left < kStops) stop = true;
    }
  });
  for (int round = 0; round < 3; ++round) {
    left = 0;
    std::vector<float> logits(want.size());
    auto pass = model->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
    EXPECT_TRUE(pass.ok()) << pass.status();
    while (pass.ok() && !(*pass)->Run(&stop)) {
      EXPECT_TRUE((*pass)->status().ok()) << (*pass)->status();
      if (!(*pass)->status().ok()) break;
      EXPECT_TRUE(Forward(*model, 7).ok());
      ++left;
      stop = false;
    }
    EXPECT_EQ(logits, want);
  }
  ended = true;
  stops.join();
}

TEST_F(ExpertStreamTest, WhatIsUsedStaysInMemory) {
  const auto model = OpenTiny(folder_, path_, Options(0.6));
  const std::vector<int32_t> tokens(4, 77);
  for (int i = 0; i < 3; ++i) OneByOne(*model, tokens);
  const ExpertStats before = model->weight_stats().experts;
  OneByOne(*model, tokens);
  const ExpertStats after = model->weight_stats().experts;
  EXPECT_GT(after.chosen, before.chosen);
  EXPECT_EQ(after.chosen - before.chosen, after.in_memory - before.in_memory);
}

// One prompt that needs everything does not push out what single tokens use all the time.
TEST_F(ExpertStreamTest, AScanKeepsWhatIsHot) {
  const auto model = OpenTiny(folder_, path_, Options(0.6));
  const std::vector<int32_t> tokens(4, 77);
  for (int i = 0; i < 20; ++i) OneByOne(*model, tokens);
  RunRows(*model, ScratchKv(model->info(), kPromptTokens), PlainRows(Tokens(3)));
  const ExpertStats before = model->weight_stats().experts;
  OneByOne(*model, tokens);
  const ExpertStats after = model->weight_stats().experts;
  EXPECT_EQ(after.chosen - before.chosen, after.in_memory - before.in_memory);
}

TEST_F(ExpertStreamTest, ABudgetForAllStreamsNothingAndTooSmallAOneIsRefused) {
  ModelOptions options;
  options.weight_budget_bytes = 2 * all_;
  const auto model = OpenTiny(folder_, path_, options);
  EXPECT_FALSE(model->weight_stats().streams());
  ExpectWorks(*model);
  options.weight_budget_bytes = least_ - 1;
  options.cache_dir = folder_.path();
  const absl::Status refused = Model::Open(path_, options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(least_)));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the experts of a layer"));
}

TEST_F(ExpertStreamTest, AReadThatFailsIsAnErrorOfTheCall) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk);
  ExpectWorks(*model);
  disk = Disk::kFails;
  const absl::Status failed = Forward(*model, 9);
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cannot be read"));
  disk = Disk::kWorks;
  ExpectWorks(*model);
  EXPECT_GE(model->weight_stats().failures, 1u);
}

TEST_F(ExpertStreamTest, BytesThatAreNotThoseOfTheFileAreNoticed) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk);
  ExpectWorks(*model);
  disk = Disk::kLies;
  const absl::Status failed = Forward(*model, 9);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("have changed"));
  EXPECT_GE(model->weight_stats().bad_reads, 1u);
  disk = Disk::kWorks;
  ExpectWorks(*model);
}

TEST_F(ExpertStreamTest, ADiskThatHangsIsGivenUpAndUsedAgain) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk, 300);
  ExpectWorks(*model);
  disk = Disk::kHangs;
  const absl::Status failed = Forward(*model, 9);
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("has delivered nothing for 300 ms"));
  EXPECT_EQ(Forward(*model, 10).code(), absl::StatusCode::kUnavailable);
  disk = Disk::kWorks;
  ExpectWorks(*model);
}

}  // namespace
}  // namespace withy::engine
