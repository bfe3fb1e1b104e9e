// Tests elastic levels: each computes what the model cut down to it, with its LoRA added, computes.
// Also which level tables are refused, how levels are planned, and in which units they are cut.
#include "engine/weights/levels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
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

using Values = std::vector<float>;

// A tiny shape whose levels cut KV heads: `group` query heads on each of 4 KV heads.
SynthShape FewQueryHeads(int32_t group) {
  SynthShape shape = TinyShape();
  shape.heads = 4 * group;
  shape.kv_heads = 4;
  return shape;
}

bool CutsKvHeads(const SynthShape& shape) { return shape.heads / shape.kv_heads < 3; }

// Writes `whole` as a plain model that keeps only the extent's neurons and query heads: the first
// neurons, and the first heads of each group or the first groups. `change` may alter a tensor's
// values before that.
void WriteCut(const GgufFile& whole, const SynthShape& shape, LayerExtent extent,
              const std::function<void(const TensorInfo&, Values*)>& change,
              const std::string& path) {
  const int32_t group = shape.heads / shape.kv_heads;
  const int32_t ranks = CutsKvHeads(shape) ? group : extent.heads / shape.kv_heads;
  const int32_t kv_heads = extent.heads / ranks;
  const int32_t neurons = extent.neurons;
  GgufWriter writer;
  writer.CopyMetadata(whole, [](std::string_view key) { return key.starts_with("withy."); });
  const std::string key = shape.architecture + ".";
  writer.Set<uint32_t>(key + "attention.head_count", static_cast<uint32_t>(extent.heads));
  writer.Set<uint32_t>(key + "attention.head_count_kv", static_cast<uint32_t>(kv_heads));
  writer.Set<uint32_t>(key + "feed_forward_length", static_cast<uint32_t>(neurons));
  std::vector<Values> kept(whole.tensors().size());
  for (size_t t = 0; t < kept.size(); ++t) {
    const TensorInfo& tensor = whole.tensors()[t];
    if (tensor.name.starts_with("withy.")) continue;
    Values values(static_cast<size_t>(tensor.elements()));
    ASSERT_TRUE(Dequantize(tensor.type, whole.Data(tensor), values).ok());
    change(tensor, &values);
    const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    const auto keeps_head = [&](int64_t at) {
      const int64_t head = at / shape.head_dim;
      return head % group < ranks && head / group < kv_heads;
    };
    const auto keep = [&](int64_t row, int64_t col) {
      if (has("attn_q.")) return keeps_head(row);
      if (has("attn_k.") || has("attn_v.")) return row / shape.head_dim < kv_heads;
      if (has("attn_output.")) return keeps_head(col);
      if (has("ffn_gate.") || has("ffn_up.")) return row < neurons;
      return !has("ffn_down.") || col < neurons;
    };
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      if (keep(i / tensor.cols(), i % tensor.cols())) {
        kept[t].push_back(values[static_cast<size_t>(i)]);
      }
    }
    std::vector<int64_t> dims = tensor.dims;
    if (has("attn_output.")) dims[0] = extent.heads * shape.head_dim;
    if (has("ffn_down.")) dims[0] = neurons;
    if (dims.size() > 1) dims[1] = static_cast<int64_t>(kept[t].size()) / dims[0];
    writer.AddTensor(tensor.name, GgmlType::kF32, dims,
                     {reinterpret_cast<const uint8_t*>(kept[t].data()), kept[t].size() * 4});
  }
  ASSERT_TRUE(writer.Write(path).ok());
}

// Logits of 24 tokens at `level`.
Values LogitsAt(Model& model, int32_t level) {
  std::vector<Row> rows = PlainRows(SomeTokens(24, model.info().vocab_size));
  for (Row& row : rows) row.level = level;
  return RunRows(model, ScratchKv(model.info(), 32), rows);
}

// A level gives the same logits as a model cut down to its heads and neurons. `target`: of the CPU;
// empty: any device.
void ExpectALevelIsTheCutModel(const SynthShape& shape, LayerExtent extent,
                               const std::string& target = "") {
  TestFolder folder;
  const std::string path = WriteTiny(folder, shape, GgmlType::kF32);
  const auto whole = GgufFile::Open(path);
  ASSERT_TRUE(whole.ok()) << whole.status();
  WriteCut(
      *whole, shape, extent, [](const TensorInfo&, Values*) {}, folder / "cut.gguf");
  ModelOptions options;
  options.target = target;
  const auto cut = OpenTiny(folder, folder / "cut.gguf", options);
  const auto layers = static_cast<size_t>(shape.layers);
  options.levels = {{.percent = 60, .layers = std::vector<LayerExtent>(layers, extent)}};
  const auto levelled = OpenTiny(folder, path, options);
  EXPECT_EQ(LogitsAt(*levelled, 0), LogitsAt(*cut, -1));
  EXPECT_EQ(levelled->info().levels[0].flops_per_token, cut->info().levels[0].flops_per_token);
  EXPECT_EQ(levelled->info().levels[0].weight_bytes, cut->info().levels[0].weight_bytes);
}

TEST(LevelTest, ALevelIsTheCutModel) { ExpectALevelIsTheCutModel(TinyShape(), {3 * 2, 256}); }

TEST(LevelTest, ALevelOfFewQueryHeadsCutsTheirKvHeads) {
  ExpectALevelIsTheCutModel(FewQueryHeads(1), {3, 256});
  ExpectALevelIsTheCutModel(FewQueryHeads(2), {2 * 2, 256});
}

// GPUs do not compute these.
TEST(ArchitectureLevelTest, LevelsCutModelsWithWindowsOrLayersWithoutRope) {
  SynthShape shape = TinyShape();
  shape.sliding_window = 9;
  ExpectALevelIsTheCutModel(shape, {3 * 2, 256}, DefaultKernels().name);
  shape = TinyShape();
  shape.architecture = "smollm3";
  shape.layers = 4;
  ExpectALevelIsTheCutModel(shape, {3 * 2, 256}, DefaultKernels().name);
}

TEST(ArchitectureLevelTest, ModelsWhoseBranchesAreNoLlamasHaveNoLevels) {
  for (const char* architecture : {"olmo2", "granite", "gemma2", "gemma3", "gpt2"}) {
    SynthShape shape = TinyShape();
    shape.architecture = architecture;
    const TestFolder folder;
    ModelOptions options;
    options.target = DefaultKernels().name;
    options.cache_dir = folder.path();
    options.threads = 2;
    const std::string path = WriteTiny(folder, shape, GgmlType::kF32);
    EXPECT_TRUE(Model::Open(path, options).ok()) << architecture;
    options.levels = {{.percent = 60, .layers = std::vector<LayerExtent>(3, {3 * 2, 256})}};
    const absl::Status status = Model::Open(path, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_NE(std::string(status.message()).find("cannot have elastic levels"), std::string::npos)
        << status;
  }
}

// Attention and MLP that a level leaves out add nothing. Their layers' K and V are still written,
// for a context that continues at another level.
TEST(LevelTest, WhatIsLeftOutAddsNothingAndItsKvIsThere) {
  const SynthShape shape = TinyShape();
  TestFolder folder;
  const std::string path = WriteTiny(folder, shape, GgmlType::kF32);
  const auto whole = GgufFile::Open(path);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const LayerExtent full{shape.heads, shape.d_ff};
  for (const int first : {0, 1, 2}) {  // the layer without attention; `second` has no MLP
    const int second = (first + 1) % 3;
    const auto zero = [&](const TensorInfo& tensor, Values* values) {
      if (tensor.name == absl::StrCat("blk.", first, ".attn_output.weight") ||
          tensor.name == absl::StrCat("blk.", second, ".ffn_down.weight")) {
        std::fill(values->begin(), values->end(), 0.0f);
      }
    };
    const std::string zeroed_path = folder / absl::StrCat("zeroed", first, ".gguf");
    WriteCut(*whole, shape, full, zero, zeroed_path);
    LevelSpec level{.percent = 60, .layers = std::vector<LayerExtent>(3, full)};
    level.layers[static_cast<size_t>(first)].heads = 0;
    level.layers[static_cast<size_t>(second)].neurons = 0;
    ModelOptions options;
    options.levels = {level};
    const auto model = OpenTiny(folder, path, options);
    const auto zeroed = OpenTiny(folder, zeroed_path);
    EXPECT_EQ(LogitsAt(*model, 0), LogitsAt(*zeroed, -1)) << first;
    const std::vector<int32_t> tokens = SomeTokens(24, model->info().vocab_size);
    const Row next{.token = 5, .position = 24, .slot = 24, .want_logits = true};
    const auto goes_on = [&](Model& before, int32_t level_before) {
      const ScratchKv kv(model->info(), 32);
      std::vector<Row> rows = PlainRows(tokens);
      for (Row& row : rows) row.level = level_before;
      RunRows(before, kv, rows);
      return RunRows(*model, kv, {&next, 1});
    };
    EXPECT_EQ(goes_on(*model, 0), goes_on(*zeroed, -1)) << first;
    EXPECT_NE(goes_on(*model, 0), goes_on(*model, -1)) << first;
  }
}

// A row of the full model whose context lacks KV heads attends with the heads that the context has,
// and computes everything else in full.
TEST(LevelTest, ARowAttendsWithTheHeadsThatItsContextHas) {
  TestFolder folder;
  const std::string path = WriteTiny(folder, FewQueryHeads(2), GgmlType::kF32);
  ModelOptions options;
  options.levels = {{.percent = 40, .layers = std::vector<LayerExtent>(3, {4, 256})},
                    {.percent = 70, .layers = std::vector<LayerExtent>(3, {4, 512})}};
  const auto model = OpenTiny(folder, path, options);
  const std::vector<int32_t> tokens = SomeTokens(24, model->info().vocab_size);
  const auto next = [&](int32_t level, int32_t context_level) {
    return Row{.token = 5,
               .position = 24,
               .slot = 24,
               .level = level,
               .context_level = context_level,
               .want_logits = true};
  };
  const auto after_low = [&](const Row& row) {
    const ScratchKv kv(model->info(), 32);
    std::vector<Row> before = PlainRows(tokens);
    for (Row& low : before) low.level = 0;
    RunRows(*model, kv, before);
    return RunRows(*model, kv, {&row, 1});
  };
  const Values narrow_attention = after_low(next(1, -1));
  EXPECT_EQ(after_low(next(2, 0)), narrow_attention);
  EXPECT_NE(after_low(next(2, -1)), narrow_attention);
  EXPECT_NE(after_low(next(0, -1)), narrow_attention);
  // The same in one batch with a context that has all heads.
  const ScratchKv low_kv(model->info(), 32);
  const ScratchKv full_kv(model->info(), 32);
  std::vector<Row> low = PlainRows(tokens);
  for (Row& row : low) row.level = 0;
  RunRows(*model, low_kv, low);
  const Values plain = RunRows(*model, full_kv, PlainRows(tokens));
  const Row full_row = next(2, -1);
  const Values full_next = RunRows(*model, full_kv, {&full_row, 1});
  std::vector<Row> both = {next(2, -1), next(2, 0)};
  both[1].context = 1;
  const std::vector<ContextView> views = {full_kv.View(), low_kv.View()};
  Values logits(2 * full_next.size());
  ASSERT_TRUE(model->Forward({.rows = both, .contexts = views}, logits.data()).ok());
  const auto half = logits.begin() + static_cast<int64_t>(full_next.size());
  EXPECT_EQ(Values(logits.begin(), half), full_next);
  EXPECT_EQ(Values(half, logits.end()), narrow_attention);
}

// Merges LoRA B * A of a level into the weights that it belongs to, as in a plain model.
class LoraMerger {
 public:
  LoraMerger(const GgufFile& file, const SynthShape& shape, int32_t percent)
      : file_(file), shape_(shape), percent_(percent) {}

  void Merge(const TensorInfo& tensor, Values* values) const {
    struct Factors {
      const char* name;
      LoraPart in;
      int32_t first;  // the first of A's ranks that belongs to this product
      LoraPart out;
    };
    const int32_t r = shape_.lora_rank;
    const Factors all[] = {{"attn_q.", LoraPart::kAttentionIn, 0, LoraPart::kQ},
                           {"attn_k.", LoraPart::kAttentionIn, r, LoraPart::kK},
                           {"attn_v.", LoraPart::kAttentionIn, 2 * r, LoraPart::kV},
                           {"attn_output.", LoraPart::kAttentionOutIn, 0, LoraPart::kAttentionOut},
                           {"ffn_gate.", LoraPart::kFfnIn, 0, LoraPart::kGate},
                           {"ffn_up.", LoraPart::kFfnIn, r, LoraPart::kUp},
                           {"ffn_down.", LoraPart::kDownIn, 0, LoraPart::kDown}};
    for (const Factors& factors : all) {
      if (tensor.name.find(factors.name) == std::string::npos) continue;
      const int32_t layer = std::stoi(tensor.name.substr(4));
      const TensorInfo* in = file_.FindTensor(LoraName(percent_, layer, factors.in));
      const TensorInfo* out = file_.FindTensor(LoraName(percent_, layer, factors.out));
      ASSERT_EQ(in == nullptr, out == nullptr) << tensor.name;
      if (in == nullptr) {  // left out: K and V stay unchanged, O and down add nothing
        if (factors.out == LoraPart::kAttentionOut || factors.out == LoraPart::kDown) {
          std::fill(values->begin(), values->end(), 0.0f);
        }
        continue;
      }
      Add(tensor, Read(*in), in->cols(), factors.first, Read(*out), out->cols(), values);
    }
  }

 private:
  Values Read(const TensorInfo& tensor) const {
    Values values(static_cast<size_t>(tensor.elements()));
    EXPECT_TRUE(Dequantize(tensor.type, file_.Data(tensor), values).ok());
    return values;
  }

  // Index of a query row (or O column) in packed order.
  int64_t Packed(int64_t at) const {
    if (CutsKvHeads(shape_)) return at;
    const int64_t ranks = shape_.heads / shape_.kv_heads;
    const int64_t head = at / shape_.head_dim;
    return (head % ranks * shape_.kv_heads + head / ranks) * shape_.head_dim + at % shape_.head_dim;
  }

  void Add(const TensorInfo& tensor, const Values& a, int64_t inputs, int64_t first,
           const Values& b, int64_t outputs, Values* values) const {
    const bool q = tensor.name.find("attn_q.") != std::string::npos;
    const bool o = tensor.name.find("attn_output.") != std::string::npos;
    for (int64_t row = 0; row < tensor.rows(); ++row) {
      for (int64_t col = 0; col < tensor.cols(); ++col) {
        const int64_t from = o ? Packed(col) : col;
        const int64_t to = q ? Packed(row) : row;
        if (from >= inputs || to >= outputs) continue;  // cut by the level
        float sum = 0;
        for (int64_t r = 0; r < shape_.lora_rank; ++r) {
          sum += b[static_cast<size_t>(r * outputs + to)] *
                 a[static_cast<size_t>((first + r) * inputs + from)];
        }
        (*values)[static_cast<size_t>(row * tensor.cols() + col)] += sum;
      }
    }
  }

  const GgufFile& file_;
  const SynthShape& shape_;
  const int32_t percent_;
};

double Cosine(const Values& a, const Values& b) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return ab / std::sqrt(aa * bb);
}

// A level with LoRA computes what the cut model with B * A added to its weights computes, up to the
// rounding of B to 8 bits. All layers have one extent, except for parts that the level leaves out
// `left_out` times.
void ExpectLoraIsAdded(SynthShape shape, int32_t percent, int left_out = 0) {
  shape.levels = {percent};
  TestFolder folder;
  const std::string path = WriteTiny(folder, shape, GgmlType::kF32);
  const auto elastic = GgufFile::Open(path);
  ASSERT_TRUE(elastic.ok()) << elastic.status();
  const auto table = ReadLevels(*elastic, *ReadShape(*elastic));
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->levels.size(), 1u);
  LayerExtent extent;
  for (const LayerExtent& layer : table->levels[0].layers) {
    extent = {std::max(extent.heads, layer.heads), std::max(extent.neurons, layer.neurons)};
  }
  for (const LayerExtent& layer : table->levels[0].layers) {
    left_out -= (layer.heads == 0 ? 1 : 0) + (layer.neurons == 0 ? 1 : 0);
    ASSERT_TRUE(layer.heads == 0 || layer.heads == extent.heads);
    ASSERT_TRUE(layer.neurons == 0 || layer.neurons == extent.neurons);
  }
  ASSERT_EQ(left_out, 0);
  ASSERT_LT(extent.heads, shape.heads);
  ASSERT_LT(extent.neurons, shape.d_ff);
  const LoraMerger merger(*elastic, shape, percent);
  WriteCut(
      *elastic, shape, extent,
      [&](const TensorInfo& tensor, Values* values) { merger.Merge(tensor, values); },
      folder / "merged.gguf");
  const auto model = OpenTiny(folder, path);
  const auto merged = OpenTiny(folder, folder / "merged.gguf");
  ModelOptions plain;
  plain.levels = table->levels;
  const auto without = OpenTiny(folder, path, plain);
  const Values expected = LogitsAt(*merged, -1);
  EXPECT_GT(Cosine(LogitsAt(*model, 0), expected), 1 - 1e-5);
  EXPECT_LT(Cosine(LogitsAt(*without, 0), expected), 1 - 1e-4);
  EXPECT_GT(model->info().levels[0].weight_bytes, without->info().levels[0].weight_bytes);
  EXPECT_EQ(model->info().parameters, without->info().parameters);
}

TEST(LevelTest, LoraIsTheCutModelWithItsProductAdded) {
  ExpectLoraIsAdded(TinyShape(), 45);
  ExpectLoraIsAdded(FewQueryHeads(1), 41);
  ExpectLoraIsAdded(FewQueryHeads(2), 42);
  ExpectLoraIsAdded(TinyShape(), 15, 2);
}

TEST(LevelTest, TablesAreCheckedByKey) {
  TestFolder folder;
  SynthShape shape = TinyShape();
  shape.levels = {40, 70};
  const std::string path = WriteTiny(folder, shape, GgmlType::kQ8_0);
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto status_with = [&](const char* key, std::vector<uint32_t> values) {
    GgufWriter writer;
    writer.CopyMetadata(*file);
    writer.SetArray<uint32_t>(key, values);
    for (const TensorInfo& tensor : file->tensors()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, file->Data(tensor));
    }
    EXPECT_TRUE(writer.Write(folder / "bad.gguf").ok());
    const auto bad = GgufFile::Open(folder / "bad.gguf");
    const std::string at_once(ReadLevels(*bad, *ReadShape(*bad)).status().message());
    if (!at_once.empty()) return at_once;
    ModelOptions options;
    options.threads = 1;
    options.cache_dir = folder.path();
    return std::string(Model::Open(folder / "bad.gguf", options).status().message());
  };
  EXPECT_THAT(status_with("withy.level.percent", {70, 40}), HasSubstr("withy.level.percent is 40"));
  EXPECT_THAT(status_with("withy.level.heads", {2, 2}), HasSubstr("2 levels of 3 layers need 6"));
  EXPECT_THAT(status_with("withy.level.neurons", {256, 256, 256, 512, 512, 9999}),
              HasSubstr("withy.level.neurons is 9999"));
  for (const char* wanted :
       {"bad.gguf: withy.level.neurons is 100", "a multiple of 64 from 0 to 512",
        "make the levels again with ./withy elasticize"}) {
    EXPECT_THAT(status_with("withy.level.neurons", {100, 256, 256, 512, 512, 512}),
                HasSubstr(wanted));
  }
  EXPECT_THAT(status_with("withy.level.heads", {3, 4, 4, 8, 8, 8}),
              HasSubstr("withy.level.heads is 3; it must be a multiple of 2 from 0 to 8"));
  EXPECT_THAT(status_with("withy.level.neurons", {256, 512, 256, 512, 256, 512}),
              HasSubstr("layer 1, level 70 %"));
  EXPECT_THAT(status_with("withy.level.heads", {4, 4, 4, 8, 8, 8}),
              HasSubstr("tensor withy.lora."));
}

TEST(LevelTest, RandomWeightsGetOnlyLevelsThatAreRead) {
  TestFolder folder;
  const auto refusal = [&](std::vector<int32_t> levels) {
    SynthShape shape = TinyShape();
    shape.levels = std::move(levels);
    return std::string(
        WriteSynthModel(shape, GgmlType::kQ8_0, 1, folder / "refused.gguf").message());
  };
  std::vector<int32_t> many(65);
  std::iota(many.begin(), many.end(), 20);
  EXPECT_THAT(refusal(many), HasSubstr("65 levels: a file has at most 64"));
  EXPECT_THAT(refusal({1, 50}), HasSubstr("level 1 %: less than the K and V"));
  EXPECT_THAT(refusal({0, 50}), HasSubstr("level 0 %: levels are ascending numbers"));
}

ModelShape PlannedShape(int32_t layers, int32_t heads, int32_t kv_heads, int32_t d_ff) {
  ModelShape shape;
  shape.layers = layers;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = 64;
  shape.d_ff = d_ff;
  return shape;
}

// For every shape and split, levels are nested, in whole units, and near the share in their name.
TEST(PlanLevelTest, LevelsAreNestedAndNearTheirShare) {
  const ModelShape shapes[] = {PlannedShape(22, 32, 4, 5632), PlannedShape(8, 8, 2, 512),
                               PlannedShape(28, 16, 8, 3072), PlannedShape(24, 16, 16, 2816)};
  const std::vector<int32_t> anchors = {0, 7, 5, 3, 6};
  for (const ModelShape& shape : shapes) {
    const double layer = 2.0 * 64 * (shape.heads + shape.kv_heads) + 3.0 * shape.d_ff;
    LevelSpec above;
    for (int32_t percent = 90; percent >= 10; percent -= 10) {
      const double head_share = std::vector<double>{0.7, 1.0, 1.4}[percent / 10 % 3];
      LevelSpec level =
          PlanLevel(shape, percent, anchors, head_share, above.layers.empty() ? nullptr : &above);
      double kept = 0;
      for (size_t i = 0; i < level.layers.size(); ++i) {
        const LayerExtent& e = level.layers[i];
        kept += 2.0 * 64 * (e.heads + shape.kv_heads_of(e.heads)) + 3.0 * e.neurons;
        EXPECT_GE(e.heads, 0);
        EXPECT_EQ(e.heads % shape.query_heads_per_unit(), 0);
        EXPECT_GE(e.neurons, 0);
        EXPECT_EQ(e.neurons % NeuronPanel(shape.d_ff), 0);
        if (above.layers.empty()) continue;
        EXPECT_LE(e.heads, above.layers[i].heads) << percent << " layer " << i;
        EXPECT_LE(e.neurons, above.layers[i].neurons) << percent << " layer " << i;
      }
      EXPECT_NEAR(kept / layer / shape.layers, percent / 100.0, 0.015)
          << percent << " of " << shape.heads << " heads, " << shape.d_ff << " neurons";
      above = std::move(level);
    }
  }
}

TEST(PlanLevelTest, ASmallLevelLeavesOutOfTheLeastImportantLayers) {
  const ModelShape shape = PlannedShape(8, 8, 2, 512);
  const std::vector<int32_t> anchors = {0, 1, 7, 3, 2, 6, 5, 4};
  const auto left_out = [&](double head_share) {
    std::pair<int, int> out;
    const LevelSpec level = PlanLevel(shape, 20, anchors, head_share);
    bool heads = true;
    bool neurons = true;
    for (const int32_t layer : anchors) {
      const LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
      EXPECT_TRUE(heads || extent.heads == 0) << "layer " << layer;
      EXPECT_TRUE(neurons || extent.neurons == 0) << "layer " << layer;
      heads = extent.heads > 0;
      neurons = extent.neurons > 0;
      out.first += heads ? 0 : 1;
      out.second += neurons ? 0 : 1;
    }
    return out;
  };
  EXPECT_EQ(left_out(0.5), std::pair(4, 1));
  EXPECT_EQ(left_out(1.0), std::pair(3, 2));
  EXPECT_EQ(left_out(2.0), std::pair(1, 5));
}

TEST(PlanLevelTest, NoLevelIsLessThanItsKAndV) {
  // K and V alone are 9.09 %: 2 * 2 * 64 rows of 2 * (8 + 2) * 64 + 3 * 512.
  EXPECT_EQ(LeastLevel(PlannedShape(8, 8, 2, 512)), 10);
  EXPECT_EQ(LeastLevel(PlannedShape(22, 32, 4, 5632)), 3);
  EXPECT_EQ(LeastLevel(PlannedShape(8, 8, 8, 512)), 1) << "levels cut KV heads there";
}

TEST(PlanLevelTest, AnchorsAreWholeAndYieldAtLowLevels) {
  const ModelShape shape = PlannedShape(22, 32, 4, 5632);
  const std::vector<int32_t> anchors = {0, 21, 10, 3, 7};
  const LayerExtent full{32, 5632};
  EXPECT_EQ(PlanLevel(shape, 60, anchors).layers[3], full);
  EXPECT_EQ(PlanLevel(shape, 20, anchors).layers[21], full);
  EXPECT_LT(PlanLevel(shape, 20, anchors).layers[10].neurons, 5632)
      << "at 20 % only two anchors are left whole";
}

// The level above comes from elsewhere and cuts an anchor, which the plan would leave whole.
TEST(PlanLevelTest, AnAnchorThatTheLevelAboveCutsStaysCut) {
  const ModelShape shape = PlannedShape(8, 8, 2, 512);
  const std::vector<int32_t> anchors = {1, 0, 7, 3, 6, 2, 4, 5};
  LevelSpec above{.percent = 70, .layers = std::vector<LayerExtent>(8, {6, 448})};
  above.layers[1] = {8, 64};
  for (const int32_t percent : {60, 40, 20}) {
    const LevelSpec level = PlanLevel(shape, percent, anchors, 1.0, &above);
    double kept = 0;
    for (size_t i = 0; i < level.layers.size(); ++i) {
      EXPECT_LE(level.layers[i].heads, above.layers[i].heads) << percent << " layer " << i;
      EXPECT_LE(level.layers[i].neurons, above.layers[i].neurons) << percent << " layer " << i;
      kept += LayerParameters(shape, level.layers[i]);
    }
    EXPECT_NEAR(kept / LayerParameters(shape, {8, 512}) / 8, percent / 100.0, 0.015) << percent;
  }
  EXPECT_EQ(PlanLevel(shape, 60, anchors, 1.0, &above).layers[1], above.layers[1]);
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

TEST(PanelInputsTest, EightPanelsOfNeuronsInASmallModel) {
  EXPECT_EQ(NeuronPanel(5632), 256);
  EXPECT_EQ(NeuronPanel(1536), 192);
  EXPECT_EQ(NeuronPanel(512), 64);
  EXPECT_EQ(NeuronPanel(384), 64);
  EXPECT_EQ(NeuronPanel(96), 32);
  EXPECT_EQ(NeuronPanel(32), 32);
}

}  // namespace
}  // namespace withy::engine
