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

// The same metadata for another architecture.
absl::StatusOr<ModelShape> ShapeOf(const std::string& architecture,
                                   const std::function<void(GgufWriter&)>& change) {
  return ShapeWith([&](GgufWriter& w) {
    const std::string a = architecture + ".";
    w.SetString("general.architecture", architecture);
    w.Set<uint32_t>(a + "block_count", 6);
    w.Set<uint32_t>(a + "embedding_length", 128);
    w.Set<uint32_t>(a + "feed_forward_length", 256);
    w.Set<uint32_t>(a + "context_length", 512);
    w.Set<uint32_t>(a + "attention.head_count", 2);
    w.Set<float>(a + "attention.layer_norm_rms_epsilon", 1e-5f);
    w.Set<uint32_t>(a + "vocab_size", 100);
    change(w);
  });
}

TEST(ShapeTest, AWindowIsOfEveryLayerOrOfAPattern) {
  const auto windows = [](const std::string& architecture,
                          const std::function<void(GgufWriter&)>& change = nullptr) {
    const auto shape = ShapeOf(architecture, [&](GgufWriter& w) {
      w.Set<uint32_t>(architecture + ".attention.sliding_window", 64);
      if (change) change(w);
    });
    EXPECT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->context_length, architecture == "qwen2" ? 64 : 512);
    return shape->windows;
  };
  using Windows = std::vector<int32_t>;
  EXPECT_EQ(windows("qwen2"), Windows());
  EXPECT_EQ(windows("llama"), Windows(6, 64));
  EXPECT_EQ(windows("phi3"), Windows(6, 64));
  EXPECT_EQ(windows("gemma2"), (Windows{64, 0, 64, 0, 64, 0}));
  EXPECT_EQ(windows("gemma3"), (Windows{64, 64, 64, 64, 64, 0}));
  EXPECT_EQ(windows("olmo2"), (Windows{64, 64, 64, 0, 64, 64}));
  EXPECT_EQ(
      windows("gemma3",
              [](GgufWriter& w) { w.Set<uint32_t>("gemma3.attention.sliding_window_pattern", 3); }),
      (Windows{64, 64, 0, 64, 64, 0}));
  // Full attention with the window of the default only where the context is longer.
  EXPECT_TRUE(ShapeOf("gemma2", [](GgufWriter&) {})->windows.empty());
  EXPECT_TRUE(ShapeOf("llama", [](GgufWriter& w) {
                w.Set<uint32_t>("llama.attention.sliding_window", 512);
              })->windows.empty());
}

TEST(ShapeTest, AWindowAsLongAsTheContextLeavesItsLayersTheirRope) {
  const auto gemma = ShapeOf("gemma3", [](GgufWriter& w) {
    w.Set<uint32_t>("gemma3.attention.sliding_window", 512);
    w.Set<float>("gemma3.rope.freq_base", 1e6f);
  });
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_TRUE(gemma->windows.empty());
  EXPECT_EQ(gemma->ropes, (std::vector<int8_t>{1, 1, 1, 1, 1, 0}));
}

TEST(ShapeTest, LayersHaveTheRopeOfTheirArchitecture) {
  EXPECT_EQ(ShapeOf("smollm3", [](GgufWriter&) {})->ropes,
            (std::vector<int8_t>{0, 0, 0, -1, 0, 0}));
  EXPECT_EQ(ShapeOf("granite",
                    [](GgufWriter& w) {
                      w.Set<float>("granite.logit_scale", 8.0f);
                      w.Set<bool>("granite.rope.scaling.finetuned", false);
                    })
                ->ropes,
            std::vector<int8_t>(6, -1));
  const auto gemma = ShapeOf("gemma3", [](GgufWriter& w) {
    w.Set<uint32_t>("gemma3.attention.sliding_window", 64);
    w.Set<float>("gemma3.rope.freq_base", 1e6f);
    w.Set<float>("gemma3.rope.scaling.factor", 8.0f);
  });
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ(gemma->ropes, (std::vector<int8_t>{1, 1, 1, 1, 1, 0}));
  ASSERT_EQ(gemma->rope_frequencies.size(), 64u);
  EXPECT_FLOAT_EQ(gemma->rope_frequencies[0], 0.125f);
  EXPECT_FLOAT_EQ(gemma->rope_frequencies[32], 1.0f);
  EXPECT_FLOAT_EQ(gemma->rope_frequencies[63],
                  static_cast<float>(std::pow(10000.0, -2.0 * 31 / 64)));
  const auto phi =
      ShapeOf("phi3", [](GgufWriter& w) { w.Set<uint32_t>("phi3.rope.dimension_count", 48); });
  EXPECT_EQ(phi->rope_dims, 48);
  EXPECT_EQ(phi->rope_frequencies.size(), 24u);
  EXPECT_THAT(
      std::string(
          ShapeOf("phi3", [](GgufWriter& w) { w.Set<uint32_t>("phi3.rope.dimension_count", 65); })
              .status()
              .message()),
      HasSubstr("phi3.rope.dimension_count is 65"));
}

TEST(ShapeTest, FactorsAndCapsAreTheFiles) {
  const auto granite = ShapeOf("granite", [](GgufWriter& w) {
    w.Set<float>("granite.logit_scale", 8.0f);
    w.Set<float>("granite.embedding_scale", 12.0f);
    w.Set<float>("granite.residual_scale", 0.25f);
    w.Set<float>("granite.attention.scale", 0.015625f);
  });
  ASSERT_TRUE(granite.ok()) << granite.status();
  EXPECT_EQ(granite->logit_scale, 0.125f);
  EXPECT_EQ(granite->embedding_scale, 12.0f);
  EXPECT_EQ(granite->residual_scale, 0.25f);
  EXPECT_EQ(granite->attention_scale, 0.015625f);
  EXPECT_THAT(std::string(ShapeOf("granite", [](GgufWriter&) {}).status().message()),
              HasSubstr("granite.logit_scale"));
  const auto gemma = ShapeOf(
      "gemma2", [](GgufWriter& w) { w.Set<float>("gemma2.final_logit_softcapping", 20.0f); });
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ(gemma->attention_cap, 50.0f);
  EXPECT_EQ(gemma->logit_cap, 20.0f);
  EXPECT_EQ(gemma->embedding_scale, std::sqrt(128.0f));
  EXPECT_EQ(gemma->attention_scale, 0.0f);
  const auto large = ShapeOf("gemma2", [](GgufWriter& w) {
    w.Set<uint32_t>("gemma2.block_count", 46);
    w.Set<uint32_t>("gemma2.attention.key_length", 32);
  });
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->attention_scale, 0.125f) << "the 27 B model scales by its width of heads, 64";
  const auto narrow = ShapeOf("gemma2", [](GgufWriter& w) {
    w.Set<uint32_t>("gemma2.block_count", 46);
    w.Set<uint32_t>("gemma2.attention.head_count", 256);
    w.Set<uint32_t>("gemma2.attention.key_length", 32);
  });
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(narrow->attention_scale, 1.0f) << "more heads than its width";
  EXPECT_THAT(BeyondLlama(*gemma), HasSubstr("GELU, scaled embeddings, soft-caps"));
  EXPECT_EQ(BeyondLlama(*ShapeOf("qwen3", [](GgufWriter&) {})), "");
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
