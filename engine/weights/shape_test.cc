// Metadata with missing, old, hostile or non-UTF-8 keys.
#include "engine/weights/shape.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "engine/gguf/writer.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::HasSubstr;

constexpr double kBase = 10000.0;
constexpr int32_t kHeadDim = 64;

// A small model's metadata without tensors, changed by `change`.
absl::StatusOr<ModelShape> ShapeWith(const std::function<void(GgufWriter&)>& change) {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  writer.Set<uint32_t>("llama.block_count", 2);
  writer.Set<uint32_t>("llama.embedding_length", 128);
  writer.Set<uint32_t>("llama.feed_forward_length", 256);
  writer.Set<uint32_t>("llama.context_length", 512);
  writer.Set<uint32_t>("llama.attention.head_count", 2);
  writer.Set<float>("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.Set<uint32_t>("llama.vocab_size", 100);
  change(writer);
  const TestFolder folder;
  const std::string path = folder / "shape.gguf";
  const absl::Status written = writer.Write(path);
  if (!written.ok()) return written;
  auto file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  return ReadShape(*file);
}

// The divisor of the slowest pair's frequency.
double DivisorWith(const std::function<void(GgufWriter&)>& change) {
  const auto shape = ShapeWith(change);
  EXPECT_TRUE(shape.ok()) << shape.status();
  if (!shape.ok()) return 0;
  const double plain = std::pow(kBase, -2.0 * (kHeadDim / 2 - 1) / kHeadDim);
  return plain / shape->rope_frequencies.back();
}

std::string RefusalOf(const std::function<void(GgufWriter&)>& change,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = ShapeWith(change).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(ValidUtf8({status.message().data(), status.message().size()}), status.message());
  return std::string(status.message());
}

TEST(ShapeTest, ARopeFactorWithoutATypeIsLinear) {
  EXPECT_NEAR(DivisorWith([](GgufWriter&) {}), 1.0, 1e-5);
  EXPECT_NEAR(DivisorWith([](GgufWriter& w) { w.Set<float>("llama.rope.scaling.factor", 4.0f); }),
              4.0, 1e-5);
  EXPECT_NEAR(DivisorWith([](GgufWriter& w) { w.Set<float>("llama.rope.scale_linear", 4.0f); }),
              4.0, 1e-5);
  // If both keys exist the present one counts, even with the value 0, which means none.
  for (const auto& [factor, divisor] : {std::pair{2.0f, 2.0}, std::pair{0.0f, 1.0}}) {
    EXPECT_NEAR(DivisorWith([factor = factor](GgufWriter& w) {
                  w.Set<float>("llama.rope.scaling.factor", factor);
                  w.Set<float>("llama.rope.scale_linear", 8.0f);
                }),
                divisor, 1e-5);
  }
}

TEST(ShapeTest, ARopeTypeSaysWhatItsFactorDoes) {
  const auto with = [](const char* type, const char* key) {
    return DivisorWith([=](GgufWriter& w) {
      w.SetString("llama.rope.scaling.type", type);
      w.Set<float>(key, 4.0f);
    });
  };
  EXPECT_NEAR(with("linear", "llama.rope.scaling.factor"), 4.0, 1e-5);
  EXPECT_NEAR(with("linear", "llama.rope.scale_linear"), 4.0, 1e-5);
  EXPECT_NEAR(with("none", "llama.rope.scaling.factor"), 1.0, 1e-5);
  EXPECT_NEAR(with("none", "llama.rope.scale_linear"), 1.0, 1e-5);
  // The slowest pair turns less than once in the original window, so it is stretched fully.
  EXPECT_NEAR(with("llama3", "llama.rope.scaling.factor"), 4.0, 1e-5);
}

TEST(ShapeTest, RopeScalingThatIsNotKnownIsNamed) {
  for (const char* type : {"yarn", "longrope", "",
                           "dyn\xFF"
                           "amic"}) {
    const std::string message =
        RefusalOf([type](GgufWriter& w) { w.SetString("llama.rope.scaling.type", type); },
                  absl::StatusCode::kUnimplemented);
    EXPECT_THAT(message, HasSubstr("llama.rope.scaling.type"));
    EXPECT_THAT(message, HasSubstr("supported are none, linear, llama3"));
  }
  for (const char* key : {"llama.rope.scaling.attn_factor", "llama.rope.scaling.alpha"}) {
    EXPECT_THAT(RefusalOf([key](GgufWriter& w) { w.Set<float>(key, 1.5f); },
                          absl::StatusCode::kUnimplemented),
                HasSubstr(std::string(key) + " is 1.5"));
  }
  EXPECT_TRUE(
      ShapeWith([](GgufWriter& w) { w.Set<float>("llama.rope.scaling.attn_factor", 1.0f); }).ok());
  for (const float factor :
       {-2.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(
        RefusalOf([factor](GgufWriter& w) { w.Set<float>("llama.rope.scaling.factor", factor); }),
        HasSubstr("llama.rope.scaling.factor"));
  }
}

TEST(ShapeTest, AWindowHoldsAPromptAndAnAnswer) {
  EXPECT_THAT(RefusalOf([](GgufWriter& w) { w.Set<uint32_t>("llama.context_length", 1); }),
              HasSubstr("llama.context_length is 1; it must be at least 2"));
  EXPECT_TRUE(ShapeWith([](GgufWriter& w) { w.Set<uint32_t>("llama.context_length", 2); }).ok());
  EXPECT_THAT(
      RefusalOf([](GgufWriter& w) { w.Set<uint32_t>("llama.attention.sliding_window", 1); }),
      HasSubstr("llama.attention.sliding_window is 1"));
}

TEST(ShapeTest, TheVocabularyHoldsTheTokenizers) {
  const std::vector<std::string> tokens(101, "x");
  EXPECT_THAT(RefusalOf([&](GgufWriter& w) { w.SetStringArray("tokenizer.ggml.tokens", tokens); }),
              HasSubstr("llama.vocab_size is 100; it must be at least the number of "
                        "tokenizer.ggml.tokens, 101"));
}

TEST(ShapeTest, AModelThatReadsBothWaysIsRefused) {
  EXPECT_THAT(RefusalOf([](GgufWriter& w) { w.Set<bool>("llama.attention.causal", false); },
                        absl::StatusCode::kUnimplemented),
              HasSubstr("llama.attention.causal"));
}

TEST(ShapeTest, NamesFromTheFileAreMadeUtf8AndShort) {
  const auto name = [](const std::string& text) {
    return ShapeWith([&](GgufWriter& w) { w.SetString("general.name", text); })->name;
  };
  EXPECT_EQ(name("Mod\xC3\xA8le"), "Mod\xC3\xA8le");
  EXPECT_EQ(name("Mod\xE8le"), "Mod\xEF\xBF\xBDle");
  EXPECT_EQ(name(std::string(1 << 20, 'x')).size(), kMaxShownBytes);
  EXPECT_THAT(RefusalOf([](GgufWriter& w) { w.SetString("general.architecture", "ll\xE8ma"); },
                        absl::StatusCode::kUnimplemented),
              HasSubstr("ll\xEF\xBF\xBDma"));
}

}  // namespace
}  // namespace withy::engine
