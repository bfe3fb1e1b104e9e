// Models with stretched RoPE (YaRN, LongRoPE) against a reference in double precision. That their
// frequencies are those of transformers is tested in engine/weights/shape_test.cc.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/model/slow_model.h"
#include "engine/model/testing.h"
#include "engine/session/served_model.h"

namespace withy::engine {
namespace {

constexpr int32_t kTokens = 100;        // more than kOriginal
constexpr int32_t kTokensOfRuns = 300;  // more than one run of attention
constexpr int32_t kOriginal = 64;
constexpr int32_t kContext = 512;

class RopeTest : public testing::Test {
 protected:
  // Writes a model of `shape` with the keys and tensors that `change` adds.
  std::string WriteWith(SynthShape shape, int32_t tokens,
                        const std::function<void(GgufWriter&)>& change) {
    shape.context_length = kContext;
    const GgufFile plain =
        GgufFile::Open(WriteTiny(folder_, shape, GgmlType::kF32, "plain.gguf")).value();
    GgufWriter writer;
    writer.CopyMetadata(plain);
    change(writer);
    for (const TensorInfo& tensor : plain.tensors()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, plain.Data(tensor));
    }
    EXPECT_TRUE(writer.Write(folder_ / "model.gguf").ok());
    tokens_ = SomeTokens(tokens, shape.vocab_size);
    return folder_ / "model.gguf";
  }

  struct Outcome {
    std::vector<float> logits;
    std::string kv_variant;
  };

  Outcome Compute(const std::string& path, const std::string& target, int32_t window) {
    ModelOptions options;
    UseTarget(target, &options);
    options.window = window;
    const auto model = OpenTiny(folder_, path, options);
    const ScratchKv kv(model->info(), static_cast<int32_t>(tokens_.size()), KvFormat::kF16);
    return {RunRows(*model, kv, PlainRows(tokens_)), model->info().kv_variant};
  }

  double ErrorOf(const std::string& path, const std::vector<float>& logits, int32_t window) {
    std::vector<double>& want = wanted_[{path, window}];
    if (want.empty()) {
      auto computed = SlowLogits(path, tokens_, window);
      EXPECT_TRUE(computed.ok()) << computed.status();
      if (computed.ok()) want = *std::move(computed);
    }
    return MeanLogProbError(want, logits, logits.size() / tokens_.size());
  }

  const TestFolder folder_;
  std::vector<int32_t> tokens_;
  std::map<std::pair<std::string, int32_t>, std::vector<double>> wanted_;
};

void AddYarn(const std::string& architecture, GgufWriter& writer) {
  const std::string scaling = architecture + ".rope.scaling.";
  writer.SetString(scaling + "type", "yarn");
  writer.Set<float>(scaling + "factor", 8.0f);
  writer.Set<uint32_t>(scaling + "original_context_length", kOriginal);
}

// With biases as of Qwen2.5, which are added to keys that were stored without them.
TEST_F(RopeTest, YarnScalesKeysAndTheirBiases) {
  SynthShape shape = TinyShape();
  shape.architecture = "qwen2";
  shape.byte_level_bpe = true;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.key_bias = 20;
  shape.key_bias_dims = 8;
  const std::string path =
      WriteWith(shape, kTokensOfRuns, [](GgufWriter& w) { AddYarn("qwen2", w); });
  for (const std::string& target : TestTargets()) {
    const Outcome yarn = Compute(path, target, 0);
    EXPECT_LT(ErrorOf(path, yarn.logits, 0), 0.01) << target;
    EXPECT_GT(ErrorOf(folder_ / "plain.gguf", yarn.logits, 0), 0.05) << "what YaRN changes";
    EXPECT_EQ(yarn.kv_variant, "");
  }
}

TEST_F(RopeTest, YarnScalesLlama) {
  const std::string path =
      WriteWith(TinyShape(), kTokens, [](GgufWriter& w) { AddYarn("llama", w); });
  for (const std::string& target : TestTargets()) {
    EXPECT_LT(ErrorOf(path, Compute(path, target, 0).logits, 0), 0.01) << target;
  }
}

// The tiny llama with LongRoPE, of a context of 512 tokens that was 64 at first.
class LongRopeTest : public RopeTest {
 protected:
  std::string WriteLongRope();
};

std::string LongRopeTest::WriteLongRope() {
  const auto pairs = static_cast<size_t>(TinyShape().head_dim / 2);
  std::vector<float> factors(2 * pairs);
  for (size_t i = 0; i < pairs; ++i) {
    factors[i] = 1.0f + 0.05f * static_cast<float>(i);
    factors[pairs + i] = 1.0f + static_cast<float>(i);
  }
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(factors.data()),
                                       factors.size() * sizeof(float));
  return WriteWith(TinyShape(), kTokens, [&](GgufWriter& w) {
    w.SetString("llama.rope.scaling.type", "longrope");
    w.Set<uint32_t>("llama.rope.scaling.original_context_length", kOriginal);
    w.Set<float>("llama.rope.scaling.attn_factor", 1.19f);
    const std::vector<int64_t> dims = {static_cast<int64_t>(pairs)};
    w.AddTensor("rope_factors_short.weight", GgmlType::kF32, dims, bytes.first(bytes.size() / 2));
    w.AddTensor("rope_factors_long.weight", GgmlType::kF32, dims, bytes.last(bytes.size() / 2));
  });
}

// The window that is configured, else the model's up to kDefaultWindow.
TEST_F(LongRopeTest, AServedModelHasTheRopeOfItsWindow) {
  ServedModelOptions options;
  options.path = WriteLongRope();
  options.model.cache_dir = folder_.path();
  options.model.threads = 1;
  for (const auto& [window, variant] :
       {std::pair{kOriginal, "short-rope"}, std::pair{kOriginal + 1, ""}, std::pair{0, ""}}) {
    options.context_length = window;
    const auto served = OpenServedModel(options);
    ASSERT_TRUE(served.ok()) << served.status();
    EXPECT_EQ((*served)->bundle.model->info().kv_variant, variant) << window;
  }
}

// One packed file serves both; KV of one is not KV of the other.
TEST_F(LongRopeTest, TheWindowChoosesTheFrequencies) {
  const std::string path = WriteLongRope();
  for (const std::string& target : TestTargets()) {
    const Outcome near = Compute(path, target, kOriginal);
    const Outcome far = Compute(path, target, kOriginal + 1);
    const Outcome whole = Compute(path, target, 0);
    EXPECT_LT(ErrorOf(path, near.logits, kOriginal), 0.01) << target;
    EXPECT_LT(ErrorOf(path, far.logits, kContext), 0.01) << target;
    EXPECT_GT(ErrorOf(path, near.logits, kContext), 0.05) << target;
    EXPECT_EQ(far.logits, whole.logits) << target;
    EXPECT_NE(near.kv_variant, far.kv_variant) << target;
    EXPECT_EQ(far.kv_variant, whole.kv_variant) << target;
  }
}

}  // namespace
}  // namespace withy::engine
