// Tests what Model refuses and promises besides numbers: bad rows, cancelling, levels that are real
// prefixes, information, greedy decoding.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/model/testing.h"
#include "engine/weights/levels.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::HasSubstr;

class ModelTest : public testing::Test {
 protected:
  ModelTest() : path_(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0)) {
    model_ = OpenTiny(folder_, path_);
    kv_ = std::make_unique<ScratchKv>(model_->info(), 64);
    logits_.resize(8 * static_cast<size_t>(model_->info().vocab_size));
  }

  absl::Status Forward(const std::vector<Row>& rows, int32_t committed = 0,
                       const std::atomic<bool>* cancel = nullptr) {
    const ContextView view = kv_->View(committed);
    return model_->Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data(), cancel);
  }

  TestFolder folder_;
  std::string path_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ScratchKv> kv_;
  std::vector<float> logits_;
};

TEST_F(ModelTest, InfoDescribesTheFile) {
  const ModelInfo& info = model_->info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.quantisation, "Q8_0");
  EXPECT_EQ(info.layers, 3);
  EXPECT_EQ(info.vocab_size, 512);
  EXPECT_EQ(info.kv.layers, 3);
  EXPECT_EQ(info.kv.chunk_tokens, 16);
  EXPECT_EQ(info.kv.block_bytes % 64, 0u);
  EXPECT_EQ(info.id.size(), 32u);
  ASSERT_EQ(info.levels.size(), 1u);
  EXPECT_EQ(info.levels[0].percent, 100);
  // Layers with two norms each, embedding and head, the last norm.
  const int64_t layer_parameters = int64_t{128} * (256 + 64 + 64 + 256 + 3 * 512);
  EXPECT_EQ(info.parameters, 3 * (layer_parameters + 2 * 128) + 2 * 512 * 128 + 128);
  // Q8_0 has 8.5 bits per weight, in whole cache lines.
  EXPECT_NEAR(static_cast<double>(info.levels[0].weight_bytes),
              static_cast<double>(3 * layer_parameters + 512 * 128) * 34 / 32, 20000);
  EXPECT_EQ(info.levels[0].flops_per_token, 2 * (3 * layer_parameters + 512 * 128));
}

TEST_F(ModelTest, RowsOutOfRangeAreRefusedByName) {
  const auto refused = [&](Row row, const char* what) {
    const absl::Status status = Forward({row});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  refused({.token = -1}, "token -1");
  refused({.token = 512}, "token 512 is outside 0 to 511");
  refused({.position = 512}, "position 512");
  refused({.slot = 64}, "slot 64");
  refused({.slot = -1}, "slot -1");
  refused({.context = 1}, "context 1");
  refused({.level = 1}, "level 1");
  const std::vector<int32_t> ancestors = {70};
  refused({.position = 3, .slot = 3, .ancestor_slots = ancestors}, "ancestor slot 70");
  refused({.position = 0, .slot = 3, .ancestor_slots = ancestors}, "ancestors 1");
  EXPECT_EQ(Forward({}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ModelTest, CommittedAndDoublySlotsAreRefused) {
  EXPECT_THAT(std::string(Forward({{.position = 3, .slot = 3}}, 4).message()),
              HasSubstr("slot 3 is committed"));
  EXPECT_THAT(
      std::string(Forward({{.position = 4, .slot = 4}, {.position = 4, .slot = 4}}).message()),
      HasSubstr("two rows write slot 4"));
}

TEST_F(ModelTest, CancelStopsTheCall) {
  std::atomic<bool> cancel = true;
  EXPECT_EQ(Forward({{.token = 5}}, 0, &cancel).code(), absl::StatusCode::kCancelled);
  cancel = false;
  EXPECT_TRUE(Forward({{.token = 5, .want_logits = true}}, 0, &cancel).ok());
}

// A pass may be destroyed before it is finished; the next one reuses its buffers.
TEST_F(ModelTest, APassMayBeGivenUp) {
  const std::vector<Row> rows = PlainRows(SomeTokens(8, 512));
  ASSERT_TRUE(Forward(rows).ok());
  const std::vector<float> reference = logits_;
  std::atomic<bool> stop = false;
  ModelOptions options;
  options.hooks.layer_tap = [&stop](int32_t layer, std::span<const float>) { stop = layer == 1; };
  const auto model = OpenTiny(folder_, path_, options);
  const ContextView view = kv_->View();
  const Batch batch{.rows = rows, .contexts = {&view, 1}};
  for (int i = 0; i < 3; ++i) {
    auto pass = model->Begin(batch, logits_.data());
    ASSERT_TRUE(pass.ok()) << pass.status();
    EXPECT_FALSE((*pass)->Run(&stop));
  }
  std::fill(logits_.begin(), logits_.end(), 0.0f);
  ASSERT_TRUE(model->Forward(batch, logits_.data()).ok());
  EXPECT_EQ(logits_, reference);
}

// Mapped weights, and those that were copied.
TEST_F(ModelTest, AModelThatRestedComputesTheSame) {
  if (model_->target().starts_with("cuda")) GTEST_SKIP() << "a GPU keeps its weights";
  const std::vector<Row> rows = PlainRows(SomeTokens(8, 512));
  ASSERT_TRUE(Forward(rows).ok());
  const std::vector<float> reference = logits_;
  for (const auto place :
       {ModelOptions::WeightPlace::kMapped, ModelOptions::WeightPlace::kCopied}) {
    ModelOptions options;
    options.weight_place = place;
    model_ = OpenTiny(folder_, path_, options);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(model_->Rest());
      std::fill(logits_.begin(), logits_.end(), 0.0f);
      ASSERT_TRUE(Forward(rows).ok());
      EXPECT_EQ(logits_, reference);
    }
  }
}

TEST_F(ModelTest, WeightsForWhichThereIsNoMemoryAreRefused) {
  const std::filesystem::path proc = folder_ / "small/proc";
  std::filesystem::create_directories(proc);
  std::ofstream(proc / "meminfo") << "MemTotal: 32768 kB\nMemAvailable: 16384 kB\n";
  ModelOptions options;
  options.cache_dir = folder_.path();
  options.threads = 1;
  options.hooks.memory_root = folder_ / "small";
  const absl::Status refused = Model::Open(path_, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(testing::HasSubstr("no memory for the model"),
                             testing::HasSubstr("16 MiB are free"),
                             testing::HasSubstr("its least weight budget is")));
  options.weight_budget_bytes = uint64_t{1} << 20;
  EXPECT_TRUE(absl::IsResourceExhausted(Model::Open(path_, options).status()));
  options.weight_budget_bytes = 0;
  options.weight_place = ModelOptions::WeightPlace::kMapped;
  EXPECT_TRUE(Model::Open(path_, options).ok()) << "whoever asks for it";
}

TEST_F(ModelTest, WeightsThatAreDamagedWhileTheModelRestsAreNotComputedWith) {
  if (model_->target().starts_with("cuda")) GTEST_SKIP() << "a GPU keeps its weights";
  ModelOptions options;
  options.weight_place = ModelOptions::WeightPlace::kCopied;
  absl::Status lost;
  options.on_lost = [&lost](const absl::Status& why) { lost = why; };
  model_ = OpenTiny(folder_, path_, options);
  ASSERT_TRUE(model_->Rest());
  const std::string packed = model_->packed_path();
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(packed) / 2);
  std::fstream file(packed, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(middle);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(byte);
  file.close();
  const std::vector<Row> rows = PlainRows(SomeTokens(8, 512));
  EXPECT_TRUE(absl::IsUnavailable(Forward(rows)));
  EXPECT_TRUE(absl::IsDataLoss(lost));
  EXPECT_THAT(std::string(lost.message()), HasSubstr(packed));
}

// A layer's share of the work is what the level computes of it.
TEST_F(ModelTest, APassIsLeftOnceSoMuchIsDone) {
  LevelSpec uneven{.percent = 60, .layers = {{8, 512}, {2, 128}, {2, 128}}};
  ModelOptions options;
  options.levels = {uneven};
  options.max_piece_rows = 4;
  const auto model = OpenTiny(folder_, path_, options);
  std::vector<Row> rows = PlainRows(SomeTokens(8, 512));
  for (Row& row : rows) row.level = 0;
  const ContextView view = kv_->View();
  const Batch batch{.rows = rows, .contexts = {&view, 1}};
  ASSERT_TRUE(model->Forward(batch, logits_.data()).ok());
  const std::vector<float> reference = logits_;
  std::fill(logits_.begin(), logits_.end(), 0.0f);
  auto pass = model->Begin(batch, logits_.data());
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_EQ((*pass)->Done(), 0);
  EXPECT_FALSE((*pass)->Run(nullptr, 0.1));
  const double first_layer = (*pass)->Done();
  EXPECT_GT(first_layer, 0.25) << "of four rows, half of what they compute";
  EXPECT_LT(first_layer, 0.35);
  EXPECT_FALSE((*pass)->Run(nullptr, first_layer / 2)) << "it is done";
  EXPECT_EQ((*pass)->Done(), first_layer);
  EXPECT_FALSE((*pass)->Run(nullptr, 0.45));
  EXPECT_NEAR((*pass)->Done(), 0.5, 1e-9) << "the first four rows";
  EXPECT_FALSE((*pass)->Run(nullptr, 0.6));
  EXPECT_NEAR((*pass)->Done(), 0.5 + first_layer, 1e-9);
  EXPECT_TRUE((*pass)->Run());
  EXPECT_EQ(logits_, reference);
  // In the last layer, rows without logits compute only K and V.
  for (Row& row : rows) row.want_logits = false;
  pass = model->Begin(batch, logits_.data());
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_FALSE((*pass)->Run(nullptr, 0.45));
  EXPECT_GT((*pass)->Done(), 0.45) << "two layers are nearly all";
  EXPECT_LT((*pass)->Done(), 0.49);
}

// A model with more steps than a step list holds.
TEST_F(ModelTest, DeepModelsComputeEveryLayerInOrder) {
  SynthShape shape = TinyShape();
  shape.layers = 90;
  const std::string path = WriteTiny(folder_, shape, GgmlType::kQ8_0, "deep.gguf");
  std::vector<int32_t> seen;
  ModelOptions options;
  options.max_piece_rows = 4;
  options.hooks.layer_tap = [&seen](int32_t layer, std::span<const float>) {
    seen.push_back(layer);
  };
  const auto model = OpenTiny(folder_, path, options);
  const std::vector<int32_t> tokens = SomeTokens(8, shape.vocab_size);
  const std::vector<float> logits =
      RunRows(*model, ScratchKv(model->info(), 16), PlainRows(tokens));
  ASSERT_EQ(seen.size(), 180u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int32_t>(i % 90));
  options.max_piece_rows = 256;
  EXPECT_EQ(logits, RunRows(*OpenTiny(folder_, path, options), ScratchKv(model->info(), 16),
                            PlainRows(tokens)));
}

TEST_F(ModelTest, MissingBlocksAreRefused) {
  const std::vector<KvBlockName> blocks(3);
  const ContextView view{.blocks = blocks, .committed_tokens = 0};
  const Row row{.token = 1};
  const absl::Status status = model_->Forward({.rows = {&row, 1}, .contexts = {&view, 1}}, nullptr);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no block for chunk 0"));
}

TEST_F(ModelTest, RowsAreRefusedInBlocksOfTheWrongFormat) {
  ScratchKv kv(model_->info(), 48);
  ASSERT_TRUE(Prefill(*model_, kv, SomeTokens(20, 512), 0, nullptr).ok());
  kv.Encode(0, KvFormat::kQ4);
  const std::vector<int32_t> ancestors = {40};
  const auto refusal = [&](const Row& row) {
    const ContextView view = kv.View();
    return std::string(
        model_->Forward({.rows = {&row, 1}, .contexts = {&view, 1}}, nullptr).message());
  };
  EXPECT_EQ(refusal({.token = 1, .position = 20, .slot = 20}), "");
  EXPECT_THAT(refusal({.token = 1, .position = 15, .slot = 15}),
              HasSubstr("slot 15 lies in a block of format q4; tokens are written as q8"));
  EXPECT_EQ(refusal({.token = 1, .position = 21, .slot = 21, .ancestor_slots = ancestors}), "");
  EXPECT_THAT(refusal({.token = 1, .position = 11, .slot = 41, .ancestor_slots = ancestors}),
              HasSubstr("slot 9 lies in a block of format q4; token trees need q8"));
}

// Decoding over encoded chunks stays near decoding over 16-bit KV: the nearer, the more bits.
TEST_F(ModelTest, LogitsGetCloserWithMoreKvBits) {
  const std::vector<int32_t> tokens = SomeTokens(80, 512);
  const auto prompt = std::span(tokens).first(64);
  const std::vector<Row> rest = PlainRows(std::span(tokens).subspan(64), 64);
  const ScratchKv exact(model_->info(), 80, KvFormat::kF16);
  ASSERT_TRUE(Prefill(*model_, exact, prompt, 0, nullptr).ok());
  const std::vector<float> want = RunRows(*model_, exact, rest);
  double last = 1e30;
  for (const KvFormat format : {KvFormat::kQ2, KvFormat::kQ4, KvFormat::kQ8}) {
    ScratchKv kv(model_->info(), 80);
    ASSERT_TRUE(Prefill(*model_, kv, prompt, 0, nullptr).ok());
    for (int32_t c = 0; c < 4 && format != KvFormat::kQ8; ++c) kv.Encode(c, format);
    const std::vector<float> got = RunRows(*model_, kv, rest);
    double error = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += static_cast<double>((got[i] - want[i]) * (got[i] - want[i]));
    }
    EXPECT_LT(error, last) << KvFormatName(format);
    last = error;
  }
}

// Every query head of a row gives a probability of 1 in each layer, but the last one is left out.
TEST_F(ModelTest, DensityIsTheAttentionThatChunksGet) {
  const ModelInfo& info = model_->info();
  const ScratchKv kv(info, 48);
  std::vector<Row> rows = PlainRows(SomeTokens(40, 512), 0);
  for (Row& row : rows) row.want_logits = false;
  std::vector<float> density(3), cut(3);
  const auto run = [&](std::span<const Row> some, std::vector<float>* sums) {
    ContextView view = kv.View();
    view.density = *sums;
    EXPECT_TRUE(model_->Forward({.rows = some, .contexts = {&view, 1}}, nullptr).ok());
  };
  run(rows, &density);
  const double sum = static_cast<double>(density[0]) + static_cast<double>(density[1]) +
                     static_cast<double>(density[2]);
  EXPECT_NEAR(sum, 40.0 * info.heads * (info.layers - 1), 0.01);
  EXPECT_GT(density[0], density[2]) << "more rows see it";
  // Rows one by one add up to the same.
  for (size_t i = 0; i < rows.size(); ++i) run(std::span(rows).subspan(i, 1), &cut);
  for (size_t chunk = 0; chunk < 3; ++chunk) EXPECT_NEAR(cut[chunk], density[chunk], 0.01);
}

// A branch of a tree behind 20 tokens: what its rows attend to is told for each of them alone, and
// is what they attend to as plain tokens.
TEST_F(ModelTest, ARowWithADensityOfItsOwnDoesNotCountForItsContext) {
  const ModelInfo& info = model_->info();
  const std::vector<int32_t> tokens = SomeTokens(23, 512);
  const auto run = [&](const ScratchKv& kv, std::span<const Row> rows) {
    std::vector<float> density(3);
    ContextView view = kv.View();
    view.density = density;
    EXPECT_TRUE(model_->Forward({.rows = rows, .contexts = {&view, 1}}, nullptr).ok());
    return density;
  };
  const ScratchKv plain(info, 48);
  std::vector<Row> rows = PlainRows(tokens);
  for (Row& row : rows) row.want_logits = false;
  run(plain, std::span(rows).first(20));
  const ScratchKv drafted(info, 48);
  run(drafted, std::span(rows).first(20));
  // The branch lies two slots behind its place.
  std::vector<int32_t> slots;
  std::vector<std::vector<float>> own(3, std::vector<float>(3));
  std::vector<Row> branch(rows.begin() + 20, rows.end());
  for (size_t i = 0; i < branch.size(); ++i) {
    branch[i].slot += 2;
    slots.push_back(branch[i].slot);
  }
  for (size_t i = 0; i < branch.size(); ++i) {
    branch[i].ancestor_slots = std::span(slots).first(i);
    branch[i].density = own[i];
  }
  EXPECT_THAT(run(drafted, branch), testing::Each(0.0f));
  for (size_t i = 0; i < branch.size(); ++i) {
    const std::vector<float> as_plain = run(plain, std::span(rows).subspan(20 + i, 1));
    for (size_t chunk = 0; chunk < 3; ++chunk) {
      EXPECT_NEAR(own[i][chunk], as_plain[chunk], 1e-4) << "row " << i << ", chunk " << chunk;
    }
  }
}

TEST_F(ModelTest, GreedyDecodingIsRepeatable) {
  const std::vector<int32_t> prompt = SomeTokens(20, 512);
  const auto first = GreedyDecode(*model_, prompt, 12);
  const auto second = GreedyDecode(*model_, prompt, 12);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->size(), 12u);
  EXPECT_EQ(*first, *second);
}

TEST_F(ModelTest, LevelsMustBeNestedAndWhole) {
  const auto open = [&](std::vector<LevelSpec> levels) {
    ModelOptions options;
    options.cache_dir = folder_.path();
    options.levels = std::move(levels);
    return Model::Open(path_, options).status();
  };
  const auto level = [](int32_t percent, int32_t heads, int32_t neurons) {
    return LevelSpec{.percent = percent, .layers = std::vector<LayerExtent>(3, {heads, neurons})};
  };
  EXPECT_TRUE(open({level(40, 2, 256)}).ok());
  EXPECT_THAT(std::string(open({level(40, 3, 256)}).message()), HasSubstr("heads 3"));
  EXPECT_TRUE(open({level(40, 0, 256)}).ok()) << "attention left out";
  EXPECT_THAT(std::string(open({level(40, -2, 256)}).message()), HasSubstr("heads -2"));
  EXPECT_THAT(std::string(open({level(40, 2, 100)}).message()), HasSubstr("neurons 100"));
  EXPECT_THAT(std::string(open({level(40, 4, 256), level(70, 2, 512)}).message()),
              HasSubstr("heads 4"));
  EXPECT_THAT(std::string(open({{.percent = 40, .layers = {{2, 256}}}}).message()),
              HasSubstr("has 1 layers"));
}

TEST(ModelTypesTest, Qwen2AndQwen3Run) {
  for (const char* architecture : {"qwen2", "qwen3"}) {
    TestFolder folder;
    SynthShape shape = TinyShape();
    shape.architecture = architecture;
    shape.tied = true;
    shape.byte_level_bpe = true;
    const auto model = OpenTiny(folder, WriteTiny(folder, shape, GgmlType::kQ4_0));
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->info().architecture, architecture);
    EXPECT_TRUE(GreedyDecode(*model, SomeTokens(9, shape.vocab_size), 4).ok());
  }
}

// Two guessed tokens behind a prompt of 18, in slots apart from it, give what they give in line.
void ExpectGuessesAsPlainTokens(Model& model, const ScratchKv& kv) {
  const std::vector<int32_t> tokens = SomeTokens(20, model.info().vocab_size);
  const ScratchKv plain(model.info(), 64);
  const std::vector<float> want = RunRows(model, plain, PlainRows(tokens));
  RunRows(model, kv, PlainRows(std::span(tokens).first(18)));
  const std::vector<int32_t> ancestors = {37};
  const std::vector<Row> tree = {
      {.token = tokens[18], .position = 18, .slot = 37, .want_logits = true},
      {.token = tokens[19],
       .position = 19,
       .slot = 50,
       .want_logits = true,
       .ancestor_slots = ancestors}};
  const std::vector<float> got = RunRows(model, kv, tree);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want.end() - static_cast<ptrdiff_t>(got.size())));
  EXPECT_EQ(got.size() * tokens.size(), want.size() * tree.size());
}

// A guessed token has the position where it would stand, not that of its slot, in K as well, which
// a learned position is part of.
TEST(ModelTypesTest, LearnedPositionsAreThoseOfRowsNotOfSlots) {
  SynthShape shape = TinyShape();
  shape.architecture = "gpt2";
  const TestFolder folder;
  ModelOptions options;
  options.target = DefaultKernels().name;
  const auto model = OpenTiny(folder, WriteTiny(folder, shape, GgmlType::kQ8_0), options);
  ASSERT_NE(model, nullptr);
  const ScratchKv kv(model->info(), 64);
  ExpectGuessesAsPlainTokens(*model, kv);
  const Row beyond{.token = 1, .position = shape.context_length, .slot = 20, .want_logits = true};
  const ContextView view = kv.View();
  std::vector<float> logits(static_cast<size_t>(shape.vocab_size));
  EXPECT_EQ(model->Forward({.rows = {&beyond, 1}, .contexts = {&view, 1}}, logits.data()).code(),
            absl::StatusCode::kInvalidArgument);
}

// The view of a context whose first `chunks` chunks lack the blocks of layers with a window.
std::vector<KvBlockName> WithoutHidden(const ContextView& view, const KvInfo& kv, int32_t chunks) {
  std::vector<KvBlockName> names(view.blocks.begin(), view.blocks.end());
  for (int32_t at = 0; at < chunks * kv.layers; ++at) {
    if (kv.windowed.Has(at % kv.layers)) names[static_cast<size_t>(at)] = {};
  }
  return names;
}

// A model with windows, a context of it, and the logits of all its tokens.
class HiddenBlocksTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int32_t kTokens = 620;
  static constexpr int32_t kFirst = kTokens - 20;  // of the tokens that are computed again

  HiddenBlocksTest() {
    const bool experts = std::string_view(GetParam()) == "gpt-oss";
    SynthShape shape = *FindSynthShape(experts ? "tiny-moe" : "tiny");
    shape.architecture = GetParam();
    shape.sliding_window = 40;
    shape.layers = 6;
    shape.context_length = 1024;
    ModelOptions options;
    options.device = "cpu";
    model_ = OpenTiny(folder_, WriteTiny(folder_, shape, GgmlType::kQ8_0), options);
    tokens_ = SomeTokens(kTokens, shape.vocab_size);
    scratch_ = std::make_unique<ScratchKv>(model_->info(), kTokens);
    reference_ = RunRows(*model_, *scratch_, PlainRows(tokens_));
    hidden_ = (kFirst - kv().window_reach) / kChunkTokens;
    last_ = PlainRows(std::span(tokens_).subspan(kFirst), kFirst);
  }
  const KvInfo& kv() const { return model_->info().kv; }
  size_t vocab() const { return static_cast<size_t>(model_->info().vocab_size); }
  absl::Status Forward(const std::vector<Row>& rows, const std::vector<KvBlockName>& blocks) {
    ContextView view = scratch_->View();
    view.blocks = blocks;
    logits_.assign(rows.size() * vocab(), 0);
    return model_->Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data());
  }
  // Whether the logits from row `row` on are those of the tokens from `token` on.
  bool AreThoseOf(int32_t row, int32_t token, int32_t count) const {
    return std::memcmp(&logits_[static_cast<size_t>(row) * vocab()],
                       &reference_[static_cast<size_t>(token) * vocab()],
                       static_cast<size_t>(count) * vocab() * sizeof(float)) == 0;
  }
  // Bytes that no kernel may read: as scales they are no numbers.
  void Spoil() {
    const ContextView view = scratch_->View();
    for (int32_t at = 0; at < hidden_ * kv().layers; ++at) {
      if (!kv().windowed.Has(at % kv().layers)) continue;
      std::memset(view.memory.At(view.blocks[static_cast<size_t>(at)]), 0xFF, kv().block_bytes);
    }
  }

  TestFolder folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<ScratchKv> scratch_;
  std::vector<float> reference_, logits_;
  int32_t hidden_ = 0;  // chunks that the last rows do not read in layers with a window
  std::vector<Row> last_;
};

TEST_P(HiddenBlocksTest, TheyNeedNotExist) {
  EXPECT_EQ(kv().window_reach, 40 + kAttentionRunTokens);
  ASSERT_FALSE(kv().windowed.empty());
  EXPECT_LT(kv().windowed.CountBelow(kv().layers), kv().layers);
  ASSERT_GT(hidden_, 10);
  std::vector<KvBlockName> names = WithoutHidden(scratch_->View(), kv(), hidden_);
  Spoil();
  ASSERT_TRUE(Forward(last_, names).ok());
  EXPECT_TRUE(AreThoseOf(0, kFirst, 20));

  // The first tokens may be computed in the same pass, while what is between lacks blocks.
  const std::span<const KvBlockName> all = scratch_->View().blocks;
  std::copy_n(all.begin(), 2 * kv().layers, names.begin());
  std::vector<Row> both = PlainRows(std::span(tokens_).first(2 * kChunkTokens));
  both.insert(both.end(), last_.begin(), last_.end());
  ASSERT_TRUE(Forward(both, names).ok());
  EXPECT_TRUE(AreThoseOf(0, 0, 2 * kChunkTokens));
  EXPECT_TRUE(AreThoseOf(2 * kChunkTokens, kFirst, 20));
}

TEST_P(HiddenBlocksTest, WhatARowReadsOrWritesMustExist) {
  const absl::Status near = Forward(last_, WithoutHidden(scratch_->View(), kv(), hidden_ + 1));
  EXPECT_EQ(near.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(near.message()),
              HasSubstr("no block for chunk " + std::to_string(hidden_)));
  std::vector<KvBlockName> names = WithoutHidden(scratch_->View(), kv(), hidden_);
  const Row early = {.token = 1, .position = 40, .slot = 40, .want_logits = true};
  EXPECT_FALSE(Forward({early}, names).ok()) << "it would be written where nothing is";
  int layer = 0;
  while (kv().windowed.Has(layer)) ++layer;
  names[static_cast<size_t>(layer)] = {};
  EXPECT_FALSE(Forward(last_, names).ok()) << "a layer without a window reads all";
}

INSTANTIATE_TEST_SUITE_P(Architectures, HiddenBlocksTest,
                         testing::Values("gemma2", "gemma3", "gemma3n", "llama", "gpt-oss",
                                         "olmo2"));

// Sinks and windows hold for guessed tokens, whose keys are scattered, as for those of a prompt.
TEST(ModelTypesTest, GuessesOfGptOssAreComputedAsPlainTokens) {
  SynthShape shape = *FindSynthShape("tiny-moe");
  shape.architecture = "gpt-oss";
  shape.sliding_window = 9;
  const TestFolder folder;
  ModelOptions options;
  options.device = "cpu";
  const auto model = OpenTiny(folder, WriteTiny(folder, shape, GgmlType::kMXFP4), options);
  ASSERT_NE(model, nullptr);
  const ScratchKv kv(model->info(), 64);
  ExpectGuessesAsPlainTokens(*model, kv);
}

}  // namespace
}  // namespace withy::engine
