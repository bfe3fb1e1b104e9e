// A model whose weights are streamed gives the bits of one that is in memory: at every level, for
// batches, trees and interleaved passes; and a disk that fails, lies or hangs costs a call and not
// the model.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/model/plan_weights.h"
#include "engine/model/testing.h"
#include "engine/weights/experts/breakable_disk.h"
#include "engine/weights/packer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

constexpr int32_t kTokens = 24;
constexpr uint64_t kTileRead = 2 * kWeightPage;  // for a row of the embedding

class StreamingTest : public testing::Test {
 protected:
  StreamingTest() {
    SynthShape shape = TinyShape();
    shape.layers = 6;
    shape.d_ff = 4096;
    shape.vocab_size = 8192;  // large enough that rows of the embedding are read
    shape.levels = {30, 60};
    path_ = WriteTiny(folder_, shape, GgmlType::kQ8_0);
    ThreadPool pool(2);
    packed_ = *EnsurePacked(path_, folder_.path(), pool);
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
  WeightPlan PlanOf(const Model& model) const {
    auto plan = PlanWeights(weights_->tensors, weights_->facts,
                            {.budget_bytes = model.weight_stats().budget_bytes});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  std::unique_ptr<Model> OpenStreamed(double share) {
    return OpenTiny(folder_, path_, Options(share));
  }
  std::unique_ptr<Model> OpenOn(BreakableDisk* disk, int64_t stall_ms = 10'000) {
    ModelOptions options = Options(0.3);
    options.stream.stall_ns = stall_ms * kNanosPerMilli;
    options.stream.make_queue = [shared = disk->shared()](uint32_t depth) {
      return std::make_unique<BreakableQueue>(depth, shared);
    };
    return OpenTiny(folder_, path_, options);
  }

  std::vector<Row> Rows(int32_t level = -1, uint32_t seed = 1) const {
    std::vector<Row> rows = PlainRows(SomeTokens(kTokens, resident_->info().vocab_size, seed));
    for (Row& row : rows) row.level = level;
    return rows;
  }
  std::vector<float> Logits(Model& model, const std::vector<Row>& rows) const {
    return RunRows(model, ScratchKv(model.info(), kTokens), rows);
  }
  absl::Status Forward(Model& model) const {
    const std::vector<Row> rows = Rows();
    const ScratchKv kv(model.info(), kTokens);
    const ContextView view = kv.View();
    std::vector<float> logits(rows.size() * static_cast<size_t>(model.info().vocab_size));
    return model.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data());
  }
  void ExpectWorks(Model& model) const {
    EXPECT_EQ(Logits(model, Rows()), Logits(*resident_, Rows()));
  }

  TestFolder folder_;
  std::string path_;
  std::string packed_;
  std::unique_ptr<UnpackedWeights> weights_;
  uint64_t least_ = 0;
  uint64_t all_ = 0;
  std::unique_ptr<Model> resident_;
};

TEST_F(StreamingTest, GivesTheBitsOfResidentWeightsAtEveryLevelAndBudget) {
  for (const double share : {0.0, 0.25, 0.45, 0.9}) {
    const auto model = OpenStreamed(share);
    const WeightStreamStats stats = model->weight_stats();
    EXPECT_TRUE(stats.streams());
    EXPECT_LE(stats.resident_bytes + stats.buffer_bytes, stats.budget_bytes);
    EXPECT_EQ(PlanOf(*model).embeddings[0].streamed(), true);
    for (int round = 0; round < 3; ++round) {
      for (const int32_t level : {-1, 0, 1, -1}) {
        EXPECT_EQ(Logits(*model, Rows(level)), Logits(*resident_, Rows(level)))
            << "level " << level << ", share " << share;
      }
    }
    EXPECT_EQ(model->weight_stats().failures, 0u);
    EXPECT_GT(model->weight_stats().read_bytes, 0u);
  }
}

TEST_F(StreamingTest, WholeLayersAndBufferedReadsGiveTheSame) {
  ModelOptions whole = Options(0.3);
  whole.hooks.stream_whole_layers = true;
  const auto layers = OpenTiny(folder_, path_, whole);
  ExpectWorks(*layers);
  EXPECT_GE(layers->weight_stats().pass_bytes, OpenStreamed(0.3)->weight_stats().pass_bytes);
  ModelOptions buffered = Options(0.3);
  buffered.stream.direct = false;
  const auto model = OpenTiny(folder_, path_, buffered);
  EXPECT_FALSE(model->weight_stats().direct);
  ExpectWorks(*model);
}

TEST_F(StreamingTest, ABatchOfLevelsAndContextsGivesTheSame) {
  const auto model = OpenStreamed(0.2);
  std::vector<std::vector<float>> results;
  for (Model* const each : {resident_.get(), model.get()}) {
    std::vector<ScratchKv> kv;
    std::vector<ContextView> views;
    for (int i = 0; i < 4; ++i) kv.emplace_back(each->info(), kTokens);
    for (const ScratchKv& one : kv) views.push_back(one.View());
    std::vector<Row> rows;
    for (int32_t context = 0; context < 4; ++context) {
      for (Row row : Rows(context % 3, 10 + static_cast<uint32_t>(context))) {
        row.context = context;
        row.want_logits = row.position % 2 == 0;
        rows.push_back(row);
      }
    }
    auto& logits =
        results.emplace_back(rows.size() / 2 * static_cast<size_t>(each->info().vocab_size));
    ASSERT_TRUE(each->Forward({.rows = rows, .contexts = views}, logits.data()).ok());
  }
  EXPECT_EQ(results[0], results[1]);
}

// A pass without logits leaves out stages of the last layer; another one runs in its middle.
TEST_F(StreamingTest, InterleavedPassesGiveTheSame) {
  const auto model = OpenStreamed(0.1);
  const std::vector<float> want = Logits(*resident_, Rows());
  const std::vector<float> other = Logits(*resident_, Rows(0, 5));
  std::vector<Row> silent = Rows();
  for (Row& row : silent) row.want_logits = false;
  for (int round = 0; round < 3; ++round) {
    Logits(*model, silent);
    const std::vector<Row> rows = Rows();
    const ScratchKv kv(model->info(), kTokens);
    const ContextView view = kv.View();
    std::vector<float> logits(want.size());
    auto pass = model->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
    ASSERT_TRUE(pass.ok());
    for (const double until : {0.2, 0.5, 0.7}) {
      EXPECT_FALSE((*pass)->Run(nullptr, until));
      EXPECT_GE((*pass)->Done(), until);
      EXPECT_EQ(Logits(*model, Rows(0, 5)), other);
    }
    EXPECT_TRUE((*pass)->Run());
    EXPECT_EQ(logits, want);
  }
}

// While a pass waits, one of a level that is in memory runs in its place.
TEST_F(StreamingTest, APassInThePlaceOfOneThatWaitsGivesTheSame) {
  BreakableDisk disk;
  ModelOptions options = Options(0.8);
  options.stream.make_queue = [shared = disk.shared()](uint32_t depth) {
    return std::make_unique<BreakableQueue>(depth, shared);
  };
  const auto model = OpenTiny(folder_, path_, options);
  ASSERT_EQ(model->weight_stats().lowest_pass_bytes, 0u);
  const std::vector<float> want = Logits(*resident_, Rows());
  const std::vector<float> other = Logits(*resident_, Rows(0, 5));
  const std::vector<Row> rows = Rows();
  const ScratchKv kv(model->info(), kTokens);
  const ContextView view = kv.View();
  std::vector<float> logits(want.size());
  int windows = 0;
  const auto meanwhile = [&](const std::atomic<bool>& arrived) {
    ++windows;
    disk = Disk::kWorks;
    EXPECT_EQ(Logits(*model, Rows(0, 5)), other);
    while (!arrived) std::this_thread::yield();
  };
  for (int round = 0; round < 3; ++round) {
    auto pass =
        model->Begin({.rows = rows, .contexts = {&view, 1}, .meanwhile = meanwhile}, logits.data());
    ASSERT_TRUE(pass.ok());
    EXPECT_FALSE((*pass)->Run(nullptr, 0.2));
    disk = Disk::kHangs;
    ASSERT_TRUE((*pass)->Run()) << (*pass)->status();
    EXPECT_EQ(logits, want);
  }
  EXPECT_GE(windows, 3);
  EXPECT_GE(model->weight_stats().waits, 3u);
  // What cannot be read has arrived, too: the pass fails, and the next one works.
  const auto fails = [](const std::atomic<bool>& arrived) {
    while (!arrived) std::this_thread::yield();
  };
  auto pass =
      model->Begin({.rows = rows, .contexts = {&view, 1}, .meanwhile = fails}, logits.data());
  ASSERT_TRUE(pass.ok());
  EXPECT_FALSE((*pass)->Run(nullptr, 0.2));
  disk = Disk::kFails;
  EXPECT_FALSE((*pass)->Run());
  EXPECT_EQ((*pass)->status().code(), absl::StatusCode::kUnavailable);
  disk = Disk::kWorks;
  ExpectWorks(*model);
}

// Bytes beyond the level's prefix are not read, except by what was read ahead before.
TEST_F(StreamingTest, ALowLevelReadsItsPrefixOnly) {
  const auto model = OpenStreamed(0);
  const WeightStreamStats before = model->weight_stats();
  constexpr int kPasses = 12;
  for (int i = 0; i < kPasses; ++i) Logits(*model, Rows(0));
  const WeightPlan plan = PlanOf(*model);
  EXPECT_LE(model->weight_stats().read_bytes,
            kPasses * (plan.level_bytes[0] + kTokens * kTileRead) + 2 * before.buffer_bytes);
  EXPECT_LT(3 * plan.level_bytes[0], 2 * before.pass_bytes) << "the test tells";
}

TEST_F(StreamingTest, ALevelThatFitsReadsNothing) {
  const auto model = OpenStreamed(0.8);
  ExpectWorks(*model);
  const WeightStreamStats before = model->weight_stats();
  constexpr int kPasses = 20;
  for (int i = 0; i < kPasses; ++i) Logits(*model, Rows(0));
  const WeightStreamStats after = model->weight_stats();
  EXPECT_LE(after.read_bytes - before.read_bytes,
            kPasses * kTokens * kTileRead + 2 * before.buffer_bytes)
      << "only the embedding, and what is read ahead";
}

TEST_F(StreamingTest, ABudgetForAllStreamsNothingAndTooSmallAOneIsRefused) {
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
}

TEST_F(StreamingTest, AReadThatFailsIsAnErrorOfTheCall) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk);
  ExpectWorks(*model);
  disk = Disk::kFails;
  // What was read ahead still serves; the ring is much smaller than a pass.
  const absl::Status failed = Forward(*model);
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cannot be read"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr(packed_));
  disk = Disk::kWorks;
  ExpectWorks(*model);
  EXPECT_GE(model->weight_stats().failures, 1u);
}

TEST_F(StreamingTest, BytesThatAreNotThoseOfTheFileAreNoticed) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk);
  disk = Disk::kLies;
  const absl::Status failed = Forward(*model);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("have changed"));
  disk = Disk::kWorks;
  ExpectWorks(*model);
}

TEST_F(StreamingTest, ADiskThatHangsIsGivenUpAndUsedAgain) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk, 1000);
  ExpectWorks(*model);
  disk = Disk::kHangs;
  const absl::Status failed = Forward(*model);
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("has delivered nothing for 1000 ms"));
  EXPECT_EQ(Forward(*model).code(), absl::StatusCode::kUnavailable);
  disk = Disk::kWorks;
  ExpectWorks(*model);
}

TEST_F(StreamingTest, AWaitEndsWhenItsCallerHasLeft) {
  BreakableDisk disk;
  const auto model = OpenOn(&disk);
  const std::vector<float> want = Logits(*model, Rows());
  disk = Disk::kHangs;
  const std::vector<Row> rows = Rows();
  const ScratchKv kv(model->info(), kTokens);
  const ContextView view = kv.View();
  std::vector<float> logits(want.size());
  auto pass = model->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
  ASSERT_TRUE(pass.ok());
  const std::atomic<bool> stop = true;
  EXPECT_FALSE((*pass)->Run(&stop));
  EXPECT_TRUE((*pass)->status().ok());
  disk = Disk::kWorks;
  EXPECT_TRUE((*pass)->Run());
  EXPECT_EQ(logits, want);
}

TEST(StreamedArchitectureTest, GivesTheBitsOfResidentWeights) {
  for (const std::string architecture : {"gemma3", "gemma3n", "phi3", "gpt2"}) {
    SynthShape shape = TinyShape();
    shape.architecture = architecture;
    shape.layers = 6;
    shape.d_ff = 4096;
    shape.vocab_size = 8192;
    if (architecture != "gpt2") shape.sliding_window = 9;
    const TestFolder folder;
    const std::string path = WriteTiny(folder, shape, GgmlType::kQ8_0);
    ModelOptions options;
    options.target = DefaultKernels().name;
    const auto resident = OpenTiny(folder, path, options);
    options.weight_budget_bytes = static_cast<uint64_t>(resident->info().weight_bytes) * 6 / 10;
    const auto streamed = OpenTiny(folder, path, options);
    ASSERT_NE(streamed, nullptr);
    EXPECT_TRUE(streamed->weight_stats().streams());
    const std::vector<Row> rows = PlainRows(SomeTokens(kTokens, shape.vocab_size));
    EXPECT_EQ(RunRows(*streamed, ScratchKv(streamed->info(), kTokens), rows),
              RunRows(*resident, ScratchKv(resident->info(), kTokens), rows))
        << architecture;
  }
}

TEST_F(StreamingTest, AFileThatIsCutShortOrChangedIsNoticed) {
  const auto model = OpenStreamed(0.2);
  ExpectWorks(*model);
  const auto size = std::filesystem::file_size(packed_);
  {
    const UniqueFd file(open(packed_.c_str(), O_RDWR));
    ASSERT_TRUE(file.valid());
    const std::vector<char> noise(size / 2, 'x');
    ASSERT_EQ(pwrite(file.get(), noise.data(), noise.size(), static_cast<off_t>(size / 2)),
              static_cast<ssize_t>(noise.size()));
    ASSERT_EQ(fsync(file.get()), 0);
  }
  const absl::Status changed = Forward(*model);
  EXPECT_EQ(changed.code(), absl::StatusCode::kDataLoss) << changed;
  ASSERT_EQ(truncate(packed_.c_str(), static_cast<off_t>(size / 2)), 0);
  const absl::Status cut = Forward(*model);
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss) << cut;
}

}  // namespace
}  // namespace withy::engine
