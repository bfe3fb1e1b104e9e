// The engine gives the same outputs for the grown and the small model at every level.
#include "offline/inflate/inflate.h"

#include <gmock/gmock.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/testing.h"

namespace withy::inflate {
namespace {

using engine::GgmlType;

// Has room for all groups of the tiny model (8 query heads on 2 KV heads), or for none.
constexpr TargetShape kGroupsFit = {
    .layers = 7, .d_model = 288, .heads = 15, .kv_heads = 3, .d_ff = 1536};
constexpr TargetShape kGroupsDoNot = {
    .layers = 8, .d_model = 320, .heads = 9, .kv_heads = 3, .d_ff = 1280};

struct Case {
  std::string architecture;
  GgmlType type;
  TargetShape target;
};

class InflateTest : public testing::TestWithParam<Case> {
 protected:
  std::vector<float> Logits(engine::Model& model, int32_t level) const {
    std::vector<engine::Row> rows = engine::PlainRows(engine::SomeTokens(24, 512));
    for (engine::Row& row : rows) row.level = level;
    return engine::RunRows(model, engine::ScratchKv(model.info(), 32), rows);
  }

  engine::TestFolder folder_;
};

TEST_P(InflateTest, EveryLevelComputesWhatTheSmallModelsComputes) {
  engine::SynthShape shape = engine::TinyShape();
  shape.architecture = GetParam().architecture;
  shape.levels = {10, 20, 40, 60, 80};
  const std::string small = engine::WriteTiny(folder_, shape, GetParam().type, "small.gguf");
  const std::string large = folder_ / "large.gguf";
  const auto file = engine::GgufFile::Open(small);
  ASSERT_TRUE(file.ok());
  const absl::Status status = Inflate(*file, GetParam().target, "a shape", 1, large);
  ASSERT_TRUE(status.ok()) << status;
  const auto a = engine::OpenTiny(folder_, small);
  const auto b = engine::OpenTiny(folder_, large);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->info().layers, GetParam().target.layers);
  EXPECT_EQ(b->info().d_model, GetParam().target.d_model);
  EXPECT_EQ(b->info().d_ff, GetParam().target.d_ff);
  ASSERT_EQ(b->info().levels.size(), 6u);
  EXPECT_GT(b->info().parameters, 3 * a->info().parameters);
  for (int32_t level = -1; level < 5; ++level) {
    const std::vector<float> x = Logits(*a, level);
    const std::vector<float> y = Logits(*b, level);
    double difference = 0;
    double length = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      difference += std::pow(double{x[i]} - y[i], 2);
      length += double{x[i]} * x[i];
    }
    // Sums run in another order; a value between two 8-bit steps may round to the other one. One
    // such value moves all dimensions of a head, since K and V are rotated.
    EXPECT_LT(std::sqrt(difference / length), 2e-2) << "level " << level;
    if (level < 0) continue;
    const auto share = [level](const engine::Model& model) {
      const std::vector<engine::LevelInfo>& levels = model.info().levels;
      return static_cast<double>(levels[static_cast<size_t>(level)].weight_bytes) /
             static_cast<double>(levels.back().weight_bytes);
    };
    EXPECT_LT(share(*b), share(*a) + 0.15) << "level " << level;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InflateTest,
                         testing::Values(Case{"llama", GgmlType::kF32, kGroupsFit},
                                         Case{"llama", GgmlType::kQ8_0, kGroupsDoNot},
                                         Case{"llama", GgmlType::kQ4_0, kGroupsFit},
                                         Case{"qwen2", GgmlType::kQ8_0, kGroupsFit},
                                         Case{"qwen3", GgmlType::kF32, kGroupsDoNot}));

TEST(Inflate, NamesTheShapesThatThereAre) {
  EXPECT_THAT(std::string(FindTargetShape("huge").status().message()),
              testing::HasSubstr("smollm2-135m, smollm2-360m, tinyllama-1.1b, llama3.2-3b"));
}

}  // namespace
}  // namespace withy::inflate
