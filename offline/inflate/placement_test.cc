#include "offline/inflate/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/weights/layout.h"

namespace withy::inflate {
namespace {

using testing::ElementsAre;

engine::ModelShape Pocket() {
  engine::ModelShape shape;
  shape.architecture = "llama";
  shape.layers = 8;
  shape.d_model = 256;
  shape.heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.d_ff = 512;
  shape.rms_epsilon = 1e-5f;
  return shape;
}

constexpr TargetShape kSmol = {
    .layers = 30, .d_model = 576, .heads = 9, .kv_heads = 3, .d_ff = 1536};

TEST(Spread, IsEvenAndInOrder) {
  EXPECT_THAT(Spread(4, 5), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(Spread(3, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(Spread(2, 8), ElementsAre(2, 6));
}

TEST(FitHeads, TakesThePublishedOnesWhereEveryGroupFits) {
  const TargetShape wide{.layers = 8, .d_model = 512, .heads = 12, .kv_heads = 3, .d_ff = 1024};
  EXPECT_EQ(FitHeads(Pocket(), wide).heads, 12);
  EXPECT_EQ(FitHeads(Pocket(), wide).kv_heads, 3);
}

// Groups of three have no room for groups of four: the same number of weights in two groups of
// five.
TEST(FitHeads, KeepsTheNumberOfWeightsWhereTheyDoNot) {
  const HeadCounts heads = FitHeads(Pocket(), kSmol);
  EXPECT_EQ(heads.heads, 10);
  EXPECT_EQ(heads.kv_heads, 2);
  EXPECT_EQ(heads.heads + heads.kv_heads, kSmol.heads + kSmol.kv_heads);
}

// Every level contains exactly the real units of the small model's level, in whole panels, nested,
// with about the same share of the weights.
TEST(Place, LevelsHoldTheSameRealUnits) {
  const engine::ModelShape pocket = Pocket();
  engine::LevelTable table;
  const std::vector<int32_t> anchors = {3, 0, 7, 1, 2, 4, 5, 6};
  table.levels =
      engine::PlanLevels(pocket, std::vector<int32_t>{10, 20, 30, 40, 50, 60, 70, 80, 90}, anchors);
  const auto placed = Place(pocket, table, kSmol);
  ASSERT_TRUE(placed.ok()) << placed.status();
  const auto count_below = [](const std::vector<int32_t>& places, int32_t end) {
    return std::count_if(places.begin(), places.end(), [end](int32_t p) { return p < end; });
  };
  std::vector<double> small_share(table.levels.size());
  std::vector<double> large_share(table.levels.size());
  const auto share = [](const engine::LayerExtent& extent, int32_t kv_heads, double whole) {
    return (128.0 * (extent.heads + kv_heads) + 3.0 * extent.neurons) / whole / 30;
  };
  int real = 0;
  for (const LayerPlacement& layer : placed->layers) {
    real += layer.real ? 1 : 0;
    ASSERT_EQ(layer.neuron_blocks.size(), 16u);
    EXPECT_TRUE(std::is_sorted(layer.neuron_blocks.begin(), layer.neuron_blocks.end()));
    EXPECT_EQ(std::adjacent_find(layer.neuron_blocks.begin(), layer.neuron_blocks.end()),
              layer.neuron_blocks.end());
    EXPECT_LT(layer.neuron_blocks.back(), 48);
    for (size_t i = 0; i < table.levels.size(); ++i) {
      const engine::LayerExtent& small = table.levels[i].layers[static_cast<size_t>(layer.source)];
      const engine::LayerExtent& large = layer.extents[i];
      EXPECT_EQ(count_below(layer.ranks, large.heads / 2), small.heads / 2) << i;
      EXPECT_EQ(count_below(layer.neuron_blocks, large.neurons / kBlock), small.neurons / kBlock);
      EXPECT_TRUE(large.neurons % engine::NeuronPanel(1536) == 0);
      small_share[i] += share(small, 2, 128.0 * 10 + 3.0 * 512);
      large_share[i] += share(large, 2, 128.0 * 12 + 3.0 * 1536);
      EXPECT_EQ(small.heads == 8 && small.neurons == 512,
                large.heads == 10 && large.neurons == 1536);
      if (i == 0) continue;
      EXPECT_GE(large.heads, layer.extents[i - 1].heads);
      EXPECT_GE(large.neurons, layer.extents[i - 1].neurons);
    }
  }
  EXPECT_EQ(real, 8);
  for (size_t i = 0; i < small_share.size(); ++i) {
    EXPECT_NEAR(large_share[i], small_share[i], 0.02) << table.levels[i].percent << " %";
  }
}

// In a shape with few more layers no layer of the small model may be lost.
TEST(Place, EveryLayerIsThereOnceAndInOrder) {
  for (const int32_t small : {1, 2, 7, 8, 30}) {
    for (int32_t layers = small; layers <= 64; ++layers) {
      engine::ModelShape shape = Pocket();
      shape.layers = small;
      TargetShape target = kSmol;
      target.layers = layers;
      const auto placed = Place(shape, {}, target);
      ASSERT_TRUE(placed.ok()) << placed.status();
      std::vector<int32_t> real;
      for (const LayerPlacement& layer : placed->layers) {
        if (layer.real) real.push_back(layer.source);
        ASSERT_TRUE(layer.source >= 0 && layer.source < small);
      }
      std::vector<int32_t> all(static_cast<size_t>(small));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(real, all) << small << " layers in " << layers;
    }
  }
}

TEST(Place, SaysWhatIsTooSmall) {
  TargetShape narrow = kSmol;
  narrow.d_model = 128;
  EXPECT_THAT(std::string(Place(Pocket(), {}, narrow).status().message()),
              testing::HasSubstr("width is 128"));
  narrow = kSmol;
  narrow.layers = 4;
  EXPECT_EQ(Place(Pocket(), {}, narrow).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace withy::inflate
