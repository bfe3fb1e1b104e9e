// Models with large key biases, as Qwen2 has them, against a reference in double precision, which
// is itself compared with transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/model/slow_model.h"
#include "engine/model/testing.h"
#include "tests/golden/testing.h"

namespace withy::engine {
namespace {

constexpr char kData[] = "tests/golden/data/";
constexpr int32_t kTokens = 300;  // more than one run of attention

TEST(SlowModelTest, MatchesTransformers) {
  for (const std::string name : {"qwen2", "llama_gqa", "llama_mha_tied"}) {
    const auto golden = GgufFile::Open(kData + name + ".golden.gguf");
    ASSERT_TRUE(golden.ok()) << golden.status();
    const TensorInfo* info = golden->FindTensor("tokens");
    ASSERT_NE(info, nullptr);
    std::vector<int32_t> tokens(static_cast<size_t>(info->elements()));
    std::memcpy(tokens.data(), golden->Data(*info).data(), tokens.size() * sizeof(int32_t));
    const auto logits = SlowLogits(kData + name + ".gguf", tokens);
    ASSERT_TRUE(logits.ok()) << logits.status();
    const std::vector<float> want = Floats(*golden, "f.logits");
    ASSERT_EQ(logits->size(), want.size());
    const size_t vocabulary = want.size() / tokens.size();
    EXPECT_LT(MeanLogProbError(*logits, want, vocabulary), 1e-3) << name;
  }
}

// Biases of 100 in 8 of the 64 dimensions, in the pairs that RoPE turns least.
class KeyBiasTest : public testing::Test {
 protected:
  KeyBiasTest() {
    SynthShape shape = TinyShape();
    shape.architecture = "qwen2";
    shape.byte_level_bpe = true;
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.head_dim = 64;
    shape.key_bias = 100;
    shape.key_bias_dims = 8;
    path_ = WriteTiny(folder_, shape, GgmlType::kF32);
    tokens_ = SomeTokens(kTokens, shape.vocab_size);
    auto want = SlowLogits(path_, tokens_);
    EXPECT_TRUE(want.ok()) << want.status();
    if (want.ok()) want_ = *std::move(want);
  }

  double ErrorOf(const std::string& target, KvFormat format) {
    ModelOptions options;
    UseTarget(target, &options);
    const auto model = OpenTiny(folder_, path_, options);
    const auto vocabulary = static_cast<size_t>(model->info().vocab_size);
    const ScratchKv kv(model->info(), kTokens, format);
    return MeanLogProbError(want_, RunRows(*model, kv, PlainRows(tokens_)), vocabulary);
  }

  const TestFolder folder_;
  std::string path_;
  std::vector<int32_t> tokens_;
  std::vector<double> want_;
};

TEST_F(KeyBiasTest, CostsNoPrecisionOfKeys) {
  for (const std::string& target : TestTargets()) {
    const double exact = ErrorOf(target, KvFormat::kF16);
    const double rounded = ErrorOf(target, KvFormat::kQ8);
    std::printf("%s: mean error of log-probabilities %.4f, with 16-bit KV %.4f\n", target.c_str(),
                rounded, exact);
    EXPECT_LT(exact, 0.01) << target;
    EXPECT_LT(rounded, 0.05) << target;
  }
}

// Bit for bit, however the prefill is cut and whatever else is in the batch.
TEST_F(KeyBiasTest, RowsAreIndependent) {
  const auto model = OpenTiny(folder_, path_);
  const auto vocabulary = static_cast<size_t>(model->info().vocab_size);
  const ScratchKv whole(model->info(), kTokens);
  const std::vector<float> want = RunRows(*model, whole, PlainRows(tokens_));
  const ScratchKv cut(model->info(), kTokens);
  const std::span<const int32_t> tokens(tokens_);
  for (int32_t first = 0; first < kTokens;) {
    const int32_t count = std::min(first % 37 + 1, kTokens - first);
    const std::vector<float> got = RunRows(
        *model, cut,
        PlainRows(tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), first));
    ASSERT_EQ(0, std::memcmp(got.data(), want.data() + static_cast<size_t>(first) * vocabulary,
                             got.size() * sizeof(float)))
        << "from " << first;
    first += count;
  }
}

}  // namespace
}  // namespace withy::engine
