// Models with copies of the residual stream, shared K and V and inputs of each layer: what their
// files must have, which KV they keep, and what is read for a token. tests/golden/ compares what
// they compute.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/model/plan_weights.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::HasSubstr;

// Three layers, of which the last shares K and V of the one before.
SynthShape TinyStreams() {
  SynthShape shape = TinyShape();
  shape.architecture = "gemma3n";
  return shape;
}

// A copy of the model whose tensors `change` changes or, by returning false, leaves out.
absl::StatusOr<PackedLayout> StreamLayoutWith(const std::function<bool(TensorInfo*)>& change) {
  const TestFolder folder;
  const auto file = GgufFile::Open(WriteTiny(folder, TinyStreams(), GgmlType::kQ8_0));
  if (!file.ok()) return file.status();
  GgufWriter writer;
  writer.CopyMetadata(*file);
  for (const TensorInfo& tensor : file->tensors()) {
    TensorInfo changed = tensor;
    if (!change(&changed)) continue;
    writer.AddTensor(changed.name, changed.type, changed.dims, file->Data(tensor));
  }
  const absl::Status written = writer.Write(folder / "changed.gguf");
  if (!written.ok()) return written;
  const auto copy = GgufFile::Open(folder / "changed.gguf");
  return copy.ok() ? PlanLayout(*copy) : copy.status();
}

absl::Status Without(const std::string& name) {
  return StreamLayoutWith([&](TensorInfo* tensor) { return tensor->name != name; }).status();
}

TEST(StreamFileTest, AMissingTensorIsNamed) {
  EXPECT_TRUE(Without("").ok()) << Without("");
  for (const std::string name :
       {"altup_proj", "altup_unembd_proj", "per_layer_token_embd", "per_layer_model_proj",
        "per_layer_proj_norm", "blk.0.altup_router", "blk.1.altup_router_norm",
        "blk.2.altup_predict_coef", "blk.0.altup_correct_coef", "blk.1.altup_correct_scale",
        "blk.2.laurel_l", "blk.0.laurel_r", "blk.1.laurel_post_norm", "blk.2.inp_gate",
        "blk.0.proj", "blk.1.post_norm", "blk.1.attn_k", "blk.1.attn_k_norm", "blk.2.attn_q"}) {
    const absl::Status status = Without(name + ".weight");
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name + ".weight"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("convert it again"));
  }
}

TEST(StreamFileTest, LayersThatShareKAndVNeedNone) {
  for (const char* name : {"attn_k", "attn_v", "attn_k_norm"}) {
    const absl::Status status = Without(std::string("blk.2.") + name + ".weight");
    EXPECT_TRUE(status.ok()) << status;
  }
  const auto layout = StreamLayoutWith([](TensorInfo*) { return true; });
  ASSERT_TRUE(layout.ok()) << layout.status();
  for (const LayoutItem& item : layout->items) {
    EXPECT_NE(std::string(item.entry.name.data()), "blk.2.attn_k");
  }
}

TEST(StreamFileTest, AnotherShapeIsNamed) {
  const absl::Status copies = StreamLayoutWith([](TensorInfo* tensor) {
                                if (tensor->name == "altup_proj.weight") {
                                  std::swap(tensor->dims[1], tensor->dims[2]);
                                }
                                return true;
                              }).status();
  EXPECT_EQ(copies.code(), absl::StatusCode::kInvalidArgument) << copies;
  EXPECT_THAT(std::string(copies.message()), HasSubstr("altup_proj.weight has 3 dimensions"));
  const absl::Status rank = StreamLayoutWith([](TensorInfo* tensor) {
                              if (tensor->name == "blk.1.laurel_r.weight") {
                                std::swap(tensor->dims[0], tensor->dims[1]);
                              }
                              return true;
                            }).status();
  EXPECT_EQ(rank.code(), absl::StatusCode::kInvalidArgument) << rank;
  EXPECT_THAT(std::string(rank.message()), HasSubstr("blk.1.laurel_r.weight"));
}

TEST(StreamModelTest, KvAndWeightsOfATokenAreThoseThatItNeeds) {
  const TestFolder folder;
  const SynthShape shape = TinyStreams();
  ModelOptions options;
  options.target = DefaultKernels().name;
  const auto model = OpenTiny(folder, WriteTiny(folder, shape, GgmlType::kQ8_0), options);
  ASSERT_NE(model, nullptr);
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.layers, 3);
  EXPECT_EQ(info.kv.layers, 2);
  const int64_t table = int64_t{shape.vocab_size} * shape.layers * 32;  // bytes of its quants
  EXPECT_LT(info.levels[0].weight_bytes, info.weight_bytes - table);
}

using Values = std::vector<float>;

// A slice of six layers: half of the neurons but in layer 1, and not layer 4, which shares K and V.
SynthShape SlicedShape() {
  SynthShape shape = TinyStreams();
  shape.layers = 6;
  shape.sliding_window = 9;
  return shape;
}
LevelSpec Slice(const SynthShape& shape) {
  LevelSpec slice{.percent = 45};
  slice.layers.assign(6, {shape.heads, shape.d_ff / 2});
  slice.layers[1].neurons = shape.d_ff;
  slice.layers[4] = {};
  return slice;
}

// Metadata of the model that the slice is.
void SetSliceKeys(const LevelSpec& slice, GgufWriter* writer) {
  std::vector<uint32_t> neurons;
  for (const LayerExtent& extent : slice.layers) {
    if (extent.neurons > 0) neurons.push_back(static_cast<uint32_t>(extent.neurons));
  }
  constexpr float kNone = ModelShape::kNoCut;
  writer->Set<uint32_t>("gemma3n.block_count", 5);
  writer->SetArray<uint32_t>("gemma3n.feed_forward_length", neurons);
  writer->Set<uint32_t>("gemma3n.attention.shared_kv_layers", 1);
  writer->SetArray<uint32_t>("gemma3n.attention.sliding_window_pattern",
                             std::vector<uint32_t>{1, 0, 1, 0, 0});
  writer->SetArray<float>("gemma3n.activation_sparsity_scale",
                          std::vector<float>{1.0f, 1.0f, kNone, kNone, kNone});
}

// Writes the model that the slice is: without layer 4, and with a prefix of each MLP.
void WriteSlice(const GgufFile& whole, const SynthShape& shape, const LevelSpec& slice,
                const std::string& path) {
  constexpr int64_t kWidth = 32;  // of a layer's inputs
  GgufWriter writer;
  writer.CopyMetadata(whole);
  SetSliceKeys(slice, &writer);
  std::vector<Values> kept(whole.tensors().size());
  for (size_t t = 0; t < kept.size(); ++t) {
    const TensorInfo& tensor = whole.tensors()[t];
    std::string name = tensor.name;
    size_t layer = 0;
    if (name.starts_with("blk.")) {
      layer = static_cast<size_t>(name[4] - '0');
      if (layer == 4) continue;
      if (layer > 4) name[4] = static_cast<char>('0' + layer - 1);
    }
    const int64_t neurons = slice.layers[layer].neurons;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const auto keep = [&](int64_t row, int64_t col) {
      if (has("ffn_gate.") || has("ffn_up.")) return row < neurons;
      if (has("ffn_down.")) return col < neurons;
      if (has("per_layer_model_proj")) return row / kWidth != 4;
      return !has("per_layer_token_embd") || col / kWidth != 4;
    };
    Values values(static_cast<size_t>(tensor.elements()));
    ASSERT_TRUE(Dequantize(tensor.type, whole.Data(tensor), values).ok());
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      if (!keep(i / tensor.cols(), i % tensor.cols())) continue;
      kept[t].push_back(values[static_cast<size_t>(i)]);
    }
    std::vector<int64_t> dims = tensor.dims;
    if (has("ffn_down.")) dims[0] = neurons;
    if (has("per_layer_token_embd")) dims[0] = (shape.layers - 1) * kWidth;
    if (dims.size() == 2) dims[1] = static_cast<int64_t>(kept[t].size()) / dims[0];
    writer.AddTensor(name, GgmlType::kF32, dims,
                     {reinterpret_cast<const uint8_t*>(kept[t].data()), kept[t].size() * 4});
  }
  ASSERT_TRUE(writer.Write(path).ok());
}

Values LogitsAt(Model& model, int32_t level) {
  std::vector<Row> rows = PlainRows(SomeTokens(24, model.info().vocab_size));
  for (Row& row : rows) row.level = level;
  return RunRows(model, ScratchKv(model.info(), 32), rows);
}

TEST(SliceTest, ALevelIsTheModelThatTheSliceIs) {
  const TestFolder folder;
  const SynthShape shape = SlicedShape();
  const std::string path = WriteTiny(folder, shape, GgmlType::kF32);
  const auto whole = GgufFile::Open(path);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const LevelSpec slice = Slice(shape);
  WriteSlice(*whole, shape, slice, folder / "slice.gguf");
  for (const Target target : SupportedTargets()) {
    ModelOptions options;
    options.target = KernelsFor(target)->name;
    const auto alone = OpenTiny(folder, folder / "slice.gguf", options);
    options.levels = {slice};
    const auto model = OpenTiny(folder, path, options);
    ASSERT_NE(model, nullptr);
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(LogitsAt(*model, 0), LogitsAt(*alone, -1)) << options.target;
    EXPECT_NE(LogitsAt(*model, 1), LogitsAt(*model, 0));
    // Inputs of the layer that is left out are made, and not used.
    const LevelInfo& of_level = model->info().levels[0];
    const LevelInfo& of_slice = alone->info().levels[0];
    EXPECT_EQ(of_level.flops_per_token - of_slice.flops_per_token, 2 * 32 * shape.d_model);
    EXPECT_LT(of_level.weight_bytes, model->info().levels[1].weight_bytes);
  }
}

// Rows of both levels in one batch, some without logits.
TEST(SliceTest, RowsOfTheWholeModelBesideThoseOfASliceDoNotMatter) {
  const TestFolder folder;
  const SynthShape shape = SlicedShape();
  const std::string path = WriteTiny(folder, shape, GgmlType::kQ8_0);
  ModelOptions options;
  options.target = DefaultKernels().name;
  options.levels = {Slice(shape)};
  options.threads = 3;
  const auto model = OpenTiny(folder, path, options);
  ASSERT_NE(model, nullptr);
  const auto vocabulary = static_cast<size_t>(shape.vocab_size);
  const std::vector<Values> alone = {LogitsAt(*model, 0), LogitsAt(*model, 1)};
  const std::vector<int32_t> tokens = SomeTokens(24, shape.vocab_size);
  const std::vector<ScratchKv> kv = [&] {
    std::vector<ScratchKv> both;
    for (int i = 0; i < 2; ++i) both.emplace_back(model->info(), 32);
    return both;
  }();
  const std::vector<ContextView> views = {kv[0].View(), kv[1].View()};
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (const int32_t level : {0, 1}) {
      Row row = PlainRows(std::span(tokens).subspan(i, 1), static_cast<int32_t>(i), level)[0];
      row.level = level;
      row.want_logits = i % 3 != 1 && (level == 0 || i > 20);
      rows.push_back(row);
    }
  }
  Values logits(rows.size() * vocabulary);
  ASSERT_TRUE(model->Forward({.rows = rows, .contexts = views}, logits.data()).ok());
  auto at = logits.begin();
  for (const Row& row : rows) {
    if (!row.want_logits) continue;
    const Values& want = alone[static_cast<size_t>(row.level)];
    EXPECT_TRUE(std::equal(at, at + static_cast<ptrdiff_t>(vocabulary),
                           want.begin() + row.position * static_cast<ptrdiff_t>(vocabulary)))
        << "level " << row.level << ", position " << row.position;
    at += static_cast<ptrdiff_t>(vocabulary);
  }
}

TEST(SliceTest, StreamedWeightsGiveTheBitsOfResidentOnes) {
  const TestFolder folder;
  SynthShape shape = SlicedShape();
  shape.d_ff = 4096;
  shape.vocab_size = 8192;
  const std::string path = WriteTiny(folder, shape, GgmlType::kQ8_0);
  ModelOptions options;
  options.target = DefaultKernels().name;
  options.levels = {Slice(shape)};
  const auto resident = OpenTiny(folder, path, options);
  options.weight_budget_bytes = static_cast<uint64_t>(resident->info().weight_bytes) * 6 / 10;
  const auto streamed = OpenTiny(folder, path, options);
  ASSERT_NE(streamed, nullptr);
  EXPECT_TRUE(streamed->weight_stats().streams());
  EXPECT_LT(streamed->weight_stats().lowest_pass_bytes, streamed->weight_stats().pass_bytes);
  for (const int32_t level : {0, 1}) {
    EXPECT_EQ(LogitsAt(*streamed, level), LogitsAt(*resident, level)) << level;
  }
}

TEST(SliceTest, AFileMayHaveSlices) {
  const TestFolder folder;
  const SynthShape shape = SlicedShape();
  const auto whole = GgufFile::Open(WriteTiny(folder, shape, GgmlType::kQ8_0));
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto open_with_rank = [&](uint32_t rank) {
    std::vector<uint32_t> heads;
    std::vector<uint32_t> neurons;
    for (const LayerExtent& extent : Slice(shape).layers) {
      heads.push_back(static_cast<uint32_t>(extent.heads));
      neurons.push_back(static_cast<uint32_t>(extent.neurons));
    }
    GgufWriter writer;
    writer.CopyMetadata(*whole);
    writer.SetArray<uint32_t>("withy.level.percent", std::vector<uint32_t>{45});
    writer.SetArray<uint32_t>("withy.level.heads", heads);
    writer.SetArray<uint32_t>("withy.level.neurons", neurons);
    writer.Set<uint32_t>("withy.lora.rank", rank);
    for (const TensorInfo& tensor : whole->tensors()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, whole->Data(tensor));
    }
    EXPECT_TRUE(writer.Write(folder / "levels.gguf").ok());
    ModelOptions options;
    options.target = DefaultKernels().name;
    options.cache_dir = folder.path();
    options.threads = 2;
    return Model::Open(folder / "levels.gguf", options);
  };
  const auto model = open_with_rank(0);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ((*model)->info().levels.size(), 2u);
  EXPECT_EQ((*model)->info().levels[0].percent, 45);
  EXPECT_THAT(std::string(open_with_rank(8).status().message()),
              HasSubstr("withy.lora.rank is 8; levels of the architecture gemma3n are slices"));
}

TEST(SliceTest, WhatIsNoSliceIsNamed) {
  const TestFolder folder;
  const SynthShape shape = SlicedShape();
  const std::string path = WriteTiny(folder, shape, GgmlType::kQ8_0);
  const auto refusal = [&](int32_t layer, const LayerExtent& extent) {
    ModelOptions options;
    options.target = DefaultKernels().name;
    options.cache_dir = folder.path();
    options.threads = 2;
    options.levels = {Slice(shape)};
    options.levels[0].layers[static_cast<size_t>(layer)] = extent;
    return std::string(Model::Open(path, options).status().message());
  };
  EXPECT_THAT(refusal(3, {}), HasSubstr("level 45 % has 0 heads and 0 neurons in layer 3"));
  EXPECT_THAT(refusal(5, {shape.heads, 0}), HasSubstr("8 heads and 0 neurons in layer 5"));
  EXPECT_THAT(refusal(0, {shape.heads / 2, 256}), HasSubstr("a slice has all 8 heads"));
}

// The embedding is the head and stays in memory; of the inputs of layers only rows are read.
TEST(StreamModelTest, UnderABudgetRowsOfTheTableOfLayerInputsAreRead) {
  const TestFolder folder;
  SynthShape shape = TinyStreams();
  shape.vocab_size = 16384;
  shape.tied = true;
  const auto file = GgufFile::Open(WriteTiny(folder, shape, GgmlType::kQ8_0));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto layout = PlanLayout(*file);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const UnpackedWeights weights(*layout);
  const auto plan =
      PlanWeights(weights.tensors, weights.facts, {.budget_bytes = layout->data_bytes * 9 / 10});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->embeddings[static_cast<size_t>(EmbeddingTable::kTokens)].streamed());
  EXPECT_TRUE(plan->embeddings[static_cast<size_t>(EmbeddingTable::kLayerInputs)].streamed());
}

}  // namespace
}  // namespace withy::engine
