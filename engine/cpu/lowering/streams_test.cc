// Models with copies of the residual stream, shared K and V and inputs of each layer: what their
// files must have, which KV they keep, and what is read for a token. tests/golden/ compares what
// they compute.
#include <functional>
#include <string>
#include <utility>

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
