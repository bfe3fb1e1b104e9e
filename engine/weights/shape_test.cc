// Metadata with missing, old, hostile or non-UTF-8 keys.
#include "engine/weights/shape.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <numbers>
#include <sstream>
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
  for (const char* type : {"YaRN", "",
                           "dyn\xFF"
                           "amic"}) {
    const std::string message =
        RefusalOf([type](GgufWriter& w) { w.SetString("llama.rope.scaling.type", type); },
                  absl::StatusCode::kUnimplemented);
    EXPECT_THAT(message, HasSubstr("llama.rope.scaling.type"));
    EXPECT_THAT(message, HasSubstr("supported are none, linear, llama3, yarn, longrope"));
  }
  EXPECT_THAT(RefusalOf([](GgufWriter& w) { w.Set<float>("llama.rope.scaling.alpha", 1.5f); },
                        absl::StatusCode::kUnimplemented),
              HasSubstr("llama.rope.scaling.alpha is 1.5"));
  for (const float factor :
       {-2.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(
        RefusalOf([factor](GgufWriter& w) { w.Set<float>("llama.rope.scaling.factor", factor); }),
        HasSubstr("llama.rope.scaling.factor"));
  }
}

// One case of tests/golden/make_rope_vectors.py.
struct RopeCase {
  std::string kind;
  std::vector<double> parameters;
  double scale = 0;
  std::vector<double> frequencies;
};

std::vector<double> NumbersIn(std::istringstream& line) {
  std::vector<double> numbers;
  for (double number = 0; line >> number;) numbers.push_back(number);
  return numbers;
}

std::vector<RopeCase> RopeCases(const std::string& kind) {
  std::ifstream in("tests/golden/data/rope/vectors.txt");
  std::vector<RopeCase> cases;
  for (std::string text, values; std::getline(in, text) && std::getline(in, values);) {
    std::istringstream line(text);
    std::istringstream expected(values);
    RopeCase c;
    line >> c.kind;
    c.parameters = NumbersIn(line);
    expected >> c.scale;
    c.frequencies = NumbersIn(expected);
    if (c.kind == kind) cases.push_back(std::move(c));
  }
  return cases;
}

void ExpectRope(const ModelShape& shape, const RopeCase& c) {
  EXPECT_NEAR(shape.rope_scales[0], c.scale, 1e-6);
  ASSERT_EQ(shape.rope_frequencies.size(), c.frequencies.size());
  for (size_t i = 0; i < c.frequencies.size(); ++i) {
    EXPECT_NEAR(shape.rope_frequencies[i] / c.frequencies[i], 1.0, 2e-6) << "pair " << i;
  }
}

TEST(ShapeTest, YarnStretchesAsTransformersDoes) {
  const std::vector<RopeCase> cases = RopeCases("yarn");
  ASSERT_GE(cases.size(), 5u) << "run from the repository root";
  for (const RopeCase& c : cases) {
    const std::vector<double>& p = c.parameters;
    SCOPED_TRACE(p[2]);
    const auto shape = ShapeWith([&](GgufWriter& w) {
      w.Set<uint32_t>("llama.attention.key_length", static_cast<uint32_t>(p[0]));
      w.Set<float>("llama.rope.freq_base", static_cast<float>(p[1]));
      w.SetString("llama.rope.scaling.type", "yarn");
      w.Set<float>("llama.rope.scaling.factor", static_cast<float>(p[2]));
      w.Set<uint32_t>("llama.rope.scaling.original_context_length", static_cast<uint32_t>(p[3]));
      w.Set<float>("llama.rope.scaling.yarn_beta_fast", static_cast<float>(p[4]));
      w.Set<float>("llama.rope.scaling.yarn_beta_slow", static_cast<float>(p[5]));
      if (p[6] != 0) {
        w.Set<float>("llama.rope.scaling.yarn_log_multiplier", static_cast<float>(p[6]));
      }
    });
    ASSERT_TRUE(shape.ok()) << shape.status();
    ExpectRope(*shape, c);
  }
}

TEST(ShapeTest, YarnsKeysHaveTheDefaultsOfLlamaCpp) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    const auto shape = ShapeWith([&](GgufWriter& w) {
      w.SetString("llama.rope.scaling.type", "yarn");
      w.Set<float>("llama.rope.scaling.factor", 4.0f);
      change(w);
    });
    EXPECT_TRUE(shape.ok()) << shape.status();
    return shape.ok() ? *shape : ModelShape();
  };
  const auto number = [](const char* key, float value) {
    return [=](GgufWriter& w) { w.Set<float>(std::string("llama.rope.scaling.") + key, value); };
  };
  const ModelShape plain = with([](GgufWriter&) {});
  const auto scale = static_cast<float>(1.0 + 0.1 * std::log(4.0));
  EXPECT_FLOAT_EQ(plain.rope_scales[0], scale);
  EXPECT_EQ(with(number("yarn_beta_fast", 32)).rope_frequencies, plain.rope_frequencies);
  EXPECT_NE(with(number("yarn_beta_fast", 8)).rope_frequencies, plain.rope_frequencies);
  EXPECT_EQ(with(number("yarn_ext_factor", -1)).rope_frequencies, plain.rope_frequencies);
  EXPECT_FLOAT_EQ(with(number("attn_factor", 1.5f)).rope_scales[0], 1.5f * scale);
  // Without extrapolation it is linear, and the scale is the file's.
  const ModelShape linear = with([&](GgufWriter& w) {
    number("yarn_ext_factor", 0)(w);
    number("yarn_attn_factor", 1.25f)(w);
  });
  EXPECT_FLOAT_EQ(linear.rope_scales[0], 1.25f);
  EXPECT_FLOAT_EQ(linear.rope_frequencies[0], 0.25f);
  for (const char* key : {"yarn_beta_fast", "yarn_ext_factor", "yarn_log_multiplier"}) {
    EXPECT_THAT(RefusalOf([&](GgufWriter& w) {
                  w.SetString("llama.rope.scaling.type", "yarn");
                  number(key, std::numeric_limits<float>::quiet_NaN())(w);
                }),
                HasSubstr(std::string("llama.rope.scaling.") + key));
  }
  EXPECT_THAT(RefusalOf([&](GgufWriter& w) {
                w.SetString("llama.rope.scaling.type", "yarn");
                w.Set<int32_t>("llama.rope.scaling.original_context_length", -1);
              }),
              HasSubstr("original_context_length is -1"));
}

// Layers with a window keep their RoPE as it was, as in OLMo 3.
TEST(ShapeTest, YarnIsOfLayersWithoutAWindow) {
  const auto shape = ShapeWith([](GgufWriter& w) {
    w.SetString("general.architecture", "olmo2");
    for (const auto& [key, value] :
         {std::pair{"block_count", 4u}, std::pair{"embedding_length", 128u},
          std::pair{"feed_forward_length", 256u}, std::pair{"context_length", 512u},
          std::pair{"attention.head_count", 2u}, std::pair{"attention.sliding_window", 64u},
          std::pair{"vocab_size", 100u}, std::pair{"rope.scaling.original_context_length", 128u}}) {
      w.Set<uint32_t>(std::string("olmo2.") + key, value);
    }
    w.Set<float>("olmo2.attention.layer_norm_rms_epsilon", 1e-5f);
    w.SetString("olmo2.rope.scaling.type", "yarn");
    w.Set<float>("olmo2.rope.scaling.factor", 8.0f);
  });
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->ropes, (std::vector<int8_t>{1, 1, 1, 0}));
  EXPECT_GT(shape->rope_scales[0], 1.2f);
  EXPECT_EQ(shape->rope_scales[1], 1.0f);
  EXPECT_FLOAT_EQ(shape->rope_frequencies[63],
                  static_cast<float>(std::pow(kBase, -2.0 * 31 / kHeadDim)));
  EXPECT_NEAR(shape->rope_frequencies[63] / shape->rope_frequencies[31], 8.0, 1e-4);
}

// A phi3 file with the tensors of LongRoPE.
absl::StatusOr<ModelShape> LongRopeShape(const std::vector<double>& p,
                                         const std::vector<const char*>& tensors,
                                         size_t short_factors = 0) {
  const auto pairs = static_cast<size_t>(p[0]) / 2;
  std::vector<float> factors(p.begin() + 5, p.end());
  if (short_factors == 0) short_factors = pairs;
  const auto* bytes = reinterpret_cast<const uint8_t*>(factors.data());
  return ShapeWith([&](GgufWriter& w) {
    w.SetString("general.architecture", "phi3");
    for (const auto& [key, value] :
         {std::pair{"block_count", 2.0}, std::pair{"embedding_length", 192.0},
          std::pair{"feed_forward_length", 256.0}, std::pair{"context_length", p[3]},
          std::pair{"attention.head_count", 2.0}, std::pair{"attention.key_length", 96.0},
          std::pair{"vocab_size", 100.0}, std::pair{"rope.dimension_count", p[0]},
          std::pair{"rope.scaling.original_context_length", p[2]}}) {
      w.Set<uint32_t>(std::string("phi3.") + key, static_cast<uint32_t>(value));
    }
    w.Set<float>("phi3.attention.layer_norm_rms_epsilon", 1e-5f);
    w.Set<float>("phi3.rope.freq_base", static_cast<float>(p[1]));
    w.Set<float>("phi3.rope.scaling.attn_factor",
                 static_cast<float>(std::sqrt(1 + std::log(p[3] / p[2]) / std::log(p[2]))));
    for (const std::string name : tensors) {
      const bool is_long = name == "rope_factors_long.weight";
      const size_t count = is_long ? pairs : short_factors;
      w.AddTensor(name, GgmlType::kF32, {static_cast<int64_t>(count)},
                  {bytes + (is_long ? pairs * sizeof(float) : 0), count * sizeof(float)});
    }
  });
}

TEST(ShapeTest, TheWindowChoosesLongRopesFactors) {
  const std::vector<RopeCase> cases = RopeCases("longrope");
  ASSERT_GE(cases.size(), 4u) << "run from the repository root";
  const std::vector<const char*> tensors = {"rope_factors_long.weight",
                                            "rope_factors_short.weight"};
  for (const RopeCase& c : cases) {
    const std::vector<double>& p = c.parameters;
    auto shape = LongRopeShape(p, tensors);
    ASSERT_TRUE(shape.ok()) << shape.status();
    ModelShape whole = *shape;
    whole.UseWindow(0);
    shape->UseWindow(static_cast<int32_t>(p[4]));
    SCOPED_TRACE(p[4]);
    ExpectRope(*shape, c);
    EXPECT_EQ(shape->short_rope, p[4] <= p[2]);
    EXPECT_FALSE(whole.short_rope) << "its whole context is a long one";
  }
  const std::vector<double>& p = cases[0].parameters;
  EXPECT_THAT(std::string(LongRopeShape(p, {tensors[0]}).status().message()),
              HasSubstr("rope_factors_short.weight"));
  EXPECT_THAT(std::string(LongRopeShape(p, tensors, 7).status().message()),
              HasSubstr("rope_factors_short.weight must be F32 with 48 elements"));
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

TEST(ShapeTest, AMixtureOfExperts) {
  const auto mixture = [](const std::function<void(GgufWriter&)>& change) {
    return ShapeOf("qwen3moe", [&](GgufWriter& w) {
      w.Set<uint32_t>("qwen3moe.expert_count", 12);
      w.Set<uint32_t>("qwen3moe.expert_used_count", 4);
      change(w);
    });
  };
  const auto plain = mixture([](GgufWriter&) {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->experts, 12);
  EXPECT_EQ(plain->experts_used, 4);
  EXPECT_EQ(plain->expert_neurons, 64) << "the neurons of a dense model, divided";
  EXPECT_TRUE(plain->normed_expert_weights);
  EXPECT_THAT(BeyondLlama(*plain), HasSubstr("experts"));
  const auto sized = mixture([](GgufWriter& w) {
    w.Set<uint32_t>("qwen3moe.expert_feed_forward_length", 96);
    w.Set<bool>("qwen3moe.expert_weights_norm", false);
  });
  ASSERT_TRUE(sized.ok()) << sized.status();
  EXPECT_EQ(sized->expert_neurons, 96);
  EXPECT_EQ(sized->d_ff, 4 * 96);
  EXPECT_FALSE(sized->normed_expert_weights);
  const auto olmoe = ShapeOf("olmoe", [](GgufWriter& w) {
    w.Set<uint32_t>("olmoe.expert_count", 12);
    w.Set<uint32_t>("olmoe.expert_used_count", 4);
  });
  ASSERT_TRUE(olmoe.ok()) << olmoe.status();
  EXPECT_EQ(olmoe->expert_neurons, 256) << "the neurons of each";
  EXPECT_FALSE(olmoe->normed_expert_weights);
  const auto refusal = [&](const std::string& key, uint32_t value) {
    return std::string(mixture([&](GgufWriter& w) { w.Set<uint32_t>("qwen3moe." + key, value); })
                           .status()
                           .message());
  };
  EXPECT_THAT(refusal("expert_feed_forward_length", 40), HasSubstr("a multiple of 32"));
  EXPECT_THAT(refusal("expert_shared_count", 1), HasSubstr("qwen3moe.expert_shared_count is 1"));
  EXPECT_THAT(refusal("expert_gating_func", 2), HasSubstr("qwen3moe.expert_gating_func is 2"));
  EXPECT_THAT(refusal("leading_dense_block_count", 1),
              HasSubstr("qwen3moe.leading_dense_block_count is 1"));
  EXPECT_THAT(std::string(ShapeOf("qwen3moe", [](GgufWriter&) {}).status().message()),
              HasSubstr("qwen3moe.expert_count"));
  EXPECT_THAT(std::string(ShapeOf("qwen3moe",
                                  [](GgufWriter& w) {
                                    w.Set<uint32_t>("qwen3moe.expert_count", 12);
                                    w.Set<uint32_t>("qwen3moe.expert_used_count", 13);
                                  })
                              .status()
                              .message()),
              HasSubstr("qwen3moe.expert_used_count is 13; it must be 1 to 12"));
}

TEST(ShapeTest, Gpt2HasLearnedPositionsAndItsOwnKeyOfEpsilon) {
  const auto gpt2 = ShapeOf("gpt2", [](GgufWriter& w) {
    w.Set<float>("gpt2.attention.layer_norm_rms_epsilon", 0.5f);
    w.Set<float>("gpt2.attention.layer_norm_epsilon", 0.25f);
  });
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->rms_epsilon, 0.25f);
  EXPECT_EQ(gpt2->kv_heads, gpt2->heads);
  EXPECT_EQ(gpt2->ropes, std::vector<int8_t>(6, ModelShape::kNoRope));
  EXPECT_EQ(BeyondLlama(*gpt2),
            "learned positions, LayerNorm, biases of all products, an MLP without a gate, GELU");
  EXPECT_THAT(std::string(ShapeOf("gpt2", [](GgufWriter&) {}).status().message()),
              HasSubstr("gpt2.attention.layer_norm_epsilon"));
}

// Six layers, of which the last two share K and V.
absl::StatusOr<ModelShape> Gemma3nWith(const std::function<void(GgufWriter&)>& change) {
  return ShapeOf("gemma3n", [&](GgufWriter& w) {
    constexpr float kNone = ModelShape::kNoCut;
    w.Set<uint32_t>("gemma3n.attention.sliding_window", 64);
    w.SetArray<uint32_t>("gemma3n.attention.sliding_window_pattern",
                         std::vector<uint32_t>{1, 0, 1, 1, 0, 1});
    w.Set<uint32_t>("gemma3n.attention.shared_kv_layers", 2);
    w.SetArray<float>("gemma3n.activation_sparsity_scale",
                      std::vector<float>{1.5f, 0.25f, kNone, kNone, kNone, kNone});
    w.Set<uint32_t>("gemma3n.altup.num_inputs", 4);
    w.Set<uint32_t>("gemma3n.altup.active_idx", 0);
    w.Set<uint32_t>("gemma3n.embedding_length_per_layer_input", 96);
    change(w);
  });
}

TEST(ShapeTest, Gemma3nSaysHowLayersDiffer) {
  const auto plain = Gemma3nWith([](GgufWriter&) {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->kv_sources, (std::vector<int32_t>{0, 1, 2, 3, 1, 3}));
  EXPECT_EQ(plain->kv_layers(), 4);
  EXPECT_EQ(plain->GateCutOf(1), 0.25f);
  EXPECT_EQ(plain->GateCutOf(2), ModelShape::kNoCut);
  EXPECT_EQ(plain->streams, 4);
  EXPECT_EQ(plain->laurel_rank, 64);
  EXPECT_EQ(plain->layer_width, 96);
  EXPECT_EQ(plain->attention_scale, 1.0f);
  EXPECT_EQ(plain->logit_cap, 30.0f);
  EXPECT_TRUE(plain->layer_neurons.empty());
  EXPECT_THAT(BeyondLlama(*plain), HasSubstr("norms of V, shared K and V, gates that are cut off"));
  const auto widths = Gemma3nWith([](GgufWriter& w) {
    w.SetArray<uint32_t>("gemma3n.feed_forward_length",
                         std::vector<uint32_t>{64, 96, 64, 64, 64, 32});
  });
  ASSERT_TRUE(widths.ok()) << widths.status();
  EXPECT_EQ(widths->d_ff, 96);
  EXPECT_EQ(widths->NeuronsOf(5), 32);
  const auto as_float =
      Gemma3nWith([](GgufWriter& w) { w.Set<float>("gemma3n.attention.shared_kv_layers", 2.0f); });
  ASSERT_TRUE(as_float.ok()) << as_float.status();
  EXPECT_EQ(as_float->kv_layers(), 4);
  const auto none = Gemma3nWith([](GgufWriter& w) {
    w.Set<uint32_t>("gemma3n.attention.shared_kv_layers", 0);
    w.SetArray<float>("gemma3n.activation_sparsity_scale",
                      std::vector<float>(6, ModelShape::kNoCut));
  });
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->kv_layers(), 6);
  EXPECT_TRUE(none->gate_cuts.empty());
}

TEST(ShapeTest, WhatGemma3nLacksOrCannotHaveIsNamed) {
  const auto refusal = [](const std::function<void(GgufWriter&)>& change) {
    return std::string(Gemma3nWith(change).status().message());
  };
  EXPECT_THAT(
      refusal([](GgufWriter& w) { w.Set<uint32_t>("gemma3n.attention.shared_kv_layers", 5); }),
      HasSubstr("gemma3n.attention.shared_kv_layers is 5; it must be less: layer 1"));
  EXPECT_THAT(
      refusal([](GgufWriter& w) { w.Set<uint32_t>("gemma3n.attention.shared_kv_layers", 6); }),
      HasSubstr("gemma3n.attention.shared_kv_layers is 6; it must be 0 to 5"));
  EXPECT_THAT(
      refusal([](GgufWriter& w) { w.Set<float>("gemma3n.attention.shared_kv_layers", 1.5f); }),
      HasSubstr("gemma3n.attention.shared_kv_layers is 1.5; it must be a whole number"));
  EXPECT_THAT(refusal([](GgufWriter& w) {
                w.SetArray<float>("gemma3n.activation_sparsity_scale", std::vector<float>(5, 1.0f));
              }),
              HasSubstr("gemma3n.activation_sparsity_scale's length is 5"));
  for (const float cut : {std::numeric_limits<float>::quiet_NaN(), 11.0f}) {
    EXPECT_THAT(refusal([cut](GgufWriter& w) {
                  w.SetArray<float>("gemma3n.activation_sparsity_scale",
                                    std::vector<float>(6, cut));
                }),
                HasSubstr("gemma3n.activation_sparsity_scale has "));
  }
  EXPECT_THAT(refusal([](GgufWriter& w) { w.Set<uint32_t>("gemma3n.altup.num_inputs", 5); }),
              HasSubstr("gemma3n.altup.num_inputs is 5; only models of 2 to 4 streams"));
  EXPECT_THAT(refusal([](GgufWriter& w) { w.Set<uint32_t>("gemma3n.altup.active_idx", 1); }),
              HasSubstr("gemma3n.altup.active_idx is 1"));
  EXPECT_THAT(refusal([](GgufWriter& w) {
                w.Set<uint32_t>("gemma3n.embedding_length_per_layer_input", 40);
              }),
              HasSubstr("gemma3n.embedding_length_per_layer_input is 40"));
  EXPECT_THAT(refusal([](GgufWriter& w) {
                w.SetArray<uint32_t>("gemma3n.feed_forward_length",
                                     std::vector<uint32_t>{64, 64, 64, 64, 64, 40});
              }),
              HasSubstr("gemma3n.feed_forward_length is 40; it must be a multiple of 32"));
  // Every key that a layer's kind needs.
  EXPECT_THAT(std::string(ShapeOf("gemma3n", [](GgufWriter&) {}).status().message()),
              HasSubstr("gemma3n.attention.shared_kv_layers"));
}

TEST(ShapeTest, GptOssMustNameItsWindowAndMayNameItsRouter) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    return ShapeOf("gpt-oss", [&](GgufWriter& w) {
      w.Set<uint32_t>("gpt-oss.expert_count", 12);
      w.Set<uint32_t>("gpt-oss.expert_used_count", 4);
      w.Set<uint32_t>("gpt-oss.attention.sliding_window", 128);
      change(w);
    });
  };
  const auto plain = with([](GgufWriter&) {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->windows, (std::vector<int32_t>{128, 0, 128, 0, 128, 0}));
  EXPECT_EQ(BeyondLlama(*plain),
            "biases of all products, a clamped activation, experts, sliding windows, attention "
            "sinks");
  EXPECT_EQ(plain->expert_neurons, plain->d_ff / 4);
  EXPECT_TRUE(plain->normed_expert_weights);
  EXPECT_TRUE(with([](GgufWriter& w) { w.Set<uint32_t>("gpt-oss.expert_gating_func", 3); }).ok());
  for (const uint32_t other : {0u, 2u, 4u}) {
    const auto refused =
        with([&](GgufWriter& w) { w.Set<uint32_t>("gpt-oss.expert_gating_func", other); });
    EXPECT_EQ(refused.ok(), other == 0) << other;
  }
  for (const int32_t window : {0, -1, 1}) {
    const absl::Status refused = with([&](GgufWriter& w) {
                                   w.Set<int32_t>("gpt-oss.attention.sliding_window", window);
                                 }).status();
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("gpt-oss.attention.sliding_window is ", window)));
  }
  const absl::Status missing = ShapeOf("gpt-oss", [](GgufWriter& w) {
                                 w.Set<uint32_t>("gpt-oss.expert_count", 12);
                                 w.Set<uint32_t>("gpt-oss.expert_used_count", 4);
                               }).status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("gpt-oss.attention.sliding_window"));
}

// The range of pairs that YaRN blends ends where the model was trained to, not at whole pairs.
TEST(ShapeTest, YarnOfGptOssIsNotRounded) {
  const auto of = [](const std::string& a) {
    return ShapeOf(a, [&](GgufWriter& w) {
      w.Set<uint32_t>(a + ".expert_count", 12);
      w.Set<uint32_t>(a + ".expert_used_count", 4);
      w.Set<uint32_t>(a + ".attention.sliding_window", 128);
      w.SetString(a + ".rope.scaling.type", "yarn");
      w.Set<float>(a + ".rope.scaling.factor", 32.0f);
      w.Set<uint32_t>(a + ".rope.scaling.original_context_length", 512);
    });
  };
  const auto exact = of("gpt-oss");
  const auto rounded = of("qwen3moe");
  ASSERT_TRUE(exact.ok()) << exact.status();
  ASSERT_TRUE(rounded.ok()) << rounded.status();
  EXPECT_EQ(exact->rope_scales, rounded->rope_scales);
  EXPECT_NE(exact->rope_frequencies, rounded->rope_frequencies);
  const double dims = exact->rope_dims;
  const auto dim_of = [&](double turns) {
    return dims * std::log(512 / (turns * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  for (size_t i = 0; i < exact->rope_frequencies.size(); ++i) {
    const double ramp = (static_cast<double>(i) - dim_of(32)) / (dim_of(1) - dim_of(32));
    const double keep = 1 - std::min(1.0, std::max(0.0, ramp));
    const double plain = std::pow(10000.0, -2.0 * static_cast<double>(i) / dims);
    EXPECT_NEAR(exact->rope_frequencies[i], plain * (keep + (1 - keep) / 32), 1e-6 * plain);
  }
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
