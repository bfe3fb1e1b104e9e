// What Model refuses and promises besides numbers: bad rows, cancelling, levels that are real
// prefixes, information, greedy decoding.
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/model/testing.h"
#include "engine/weights/layout.h"
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
  // Q8_0 keeps 8.5 bits a weight, in whole cache lines.
  const int64_t layer_parameters = int64_t{128} * (256 + 64 + 64 + 256 + 3 * 512);
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

TEST_F(ModelTest, MissingBlocksAreRefused) {
  std::vector<std::byte*> blocks(3, nullptr);
  const ContextView view{.blocks = blocks, .committed_tokens = 0};
  const Row row{.token = 1};
  const absl::Status status = model_->Forward({.rows = {&row, 1}, .contexts = {&view, 1}}, nullptr);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no block for chunk 0"));
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
  EXPECT_THAT(std::string(open({level(40, 0, 256)}).message()), HasSubstr("heads 0"));
  EXPECT_THAT(std::string(open({level(40, 2, 100)}).message()), HasSubstr("neurons 100"));
  EXPECT_THAT(std::string(open({level(40, 4, 256), level(70, 2, 512)}).message()),
              HasSubstr("heads 4"));
  EXPECT_THAT(std::string(open({{.percent = 40, .layers = {{2, 256}}}}).message()),
              HasSubstr("has 1 layers"));
}

// A level computes what a model cut down to its heads and neurons computes.
TEST(LevelTest, ALevelIsTheCutModel) {
  const SynthShape shape = TinyShape();
  constexpr int32_t kRanks = 3;
  constexpr int32_t kNeurons = 256;
  TestFolder folder;
  const std::string path = WriteTiny(folder, shape, GgmlType::kF32);
  const auto whole = GgufFile::Open(path);
  ASSERT_TRUE(whole.ok()) << whole.status();
  // Keeps the first kRanks query heads of each group, and the first kNeurons neurons.
  const auto keeps_head = [&](int64_t head) {
    return head % (shape.heads / shape.kv_heads) < kRanks;
  };
  GgufWriter writer;
  writer.CopyMetadata(*whole);
  writer.Set<uint32_t>("llama.attention.head_count", kRanks * 2);
  writer.Set<uint32_t>("llama.feed_forward_length", kNeurons);
  std::vector<std::vector<float>> kept(whole->tensors().size());
  for (size_t t = 0; t < kept.size(); ++t) {
    const TensorInfo& tensor = whole->tensors()[t];
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    ASSERT_TRUE(Dequantize(tensor.type, whole->Data(tensor), values).ok());
    const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    const auto keep = [&](int64_t row, int64_t col) {
      if (has("attn_q.")) return keeps_head(row / shape.head_dim);
      if (has("attn_output.")) return keeps_head(col / shape.head_dim);
      if (has("ffn_gate.") || has("ffn_up.")) return row < kNeurons;
      return !has("ffn_down.") || col < kNeurons;
    };
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      if (keep(i / tensor.cols(), i % tensor.cols())) {
        kept[t].push_back(values[static_cast<size_t>(i)]);
      }
    }
    std::vector<int64_t> dims = tensor.dims;
    if (has("attn_output.")) dims[0] = kRanks * 2 * shape.head_dim;
    if (has("ffn_down.")) dims[0] = kNeurons;
    if (dims.size() > 1) dims[1] = static_cast<int64_t>(kept[t].size()) / dims[0];
    writer.AddTensor(tensor.name, GgmlType::kF32, dims,
                     {reinterpret_cast<const uint8_t*>(kept[t].data()), kept[t].size() * 4});
  }
  ASSERT_TRUE(writer.Write(folder / "cut.gguf").ok());

  ModelOptions options;
  options.levels = {{.percent = 60, .layers = std::vector<LayerExtent>(3, {kRanks * 2, kNeurons})}};
  const auto levelled = OpenTiny(folder, path, options);
  const auto cut = OpenTiny(folder, folder / "cut.gguf");
  const std::vector<int32_t> tokens = SomeTokens(24, shape.vocab_size);
  std::vector<Row> rows = PlainRows(tokens);
  const std::vector<float> expected = RunRows(*cut, ScratchKv(cut->info(), 32), rows);
  for (Row& row : rows) row.level = 0;
  EXPECT_EQ(RunRows(*levelled, ScratchKv(levelled->info(), 32), rows), expected);
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

TEST(QueryHeadOrderTest, RankMajorFromThreeHeadsAGroup) {
  EXPECT_EQ(QueryHeadOrder(6, 2), (std::vector<int32_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(QueryHeadOrder(4, 2), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(QueryHeadOrder(3, 1), (std::vector<int32_t>{0, 1, 2}));
}

TEST(PanelInputsTest, LargestDivisorUpTo256) {
  EXPECT_EQ(PanelInputs(5632), 256);
  EXPECT_EQ(PanelInputs(320), 160);
  EXPECT_EQ(PanelInputs(128), 128);
  EXPECT_EQ(PanelInputs(32), 32);
  EXPECT_EQ(PanelInputs(32 * 11), 32);
}

}  // namespace
}  // namespace withy::engine
