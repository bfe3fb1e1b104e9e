#include "engine/weights/architecture/trained_slices.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/weights/layout.h"

namespace withy::engine {
namespace {

// Gemma 3n E4B, whose last fifteen layers share K and V; every fifth sees all positions.
ModelShape E4b() {
  ModelShape shape;
  shape.architecture = "gemma3n";
  shape.nested_slices = true;
  shape.layers = 35;
  shape.d_model = 2048;
  shape.d_ff = 16384;
  shape.heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 256;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const bool whole_view = layer % 5 == 4;
    shape.kv_sources.push_back(layer < 20 ? layer : (whole_view ? 19 : 18));
  }
  return shape;
}

// Billions of weights, the embeddings aside.
double Billions(const ModelShape& shape, const std::vector<LayerExtent>& layers) {
  double sum = 0;
  for (const LayerExtent& extent : layers) {
    if (extent.heads > 0) sum += LayerParameters(shape, extent);
  }
  return sum * shape.d_model / 1e9;
}

TEST(TrainedSlicesTest, TheyAreThePublishedSizesAndEachIsPartOfTheNext) {
  const ModelShape shape = E4b();
  std::vector<LevelSpec> levels = TrainedSlices(shape);
  const std::vector<double> published = {1.91, 1.96, 2.54, 2.69, 3.18, 3.39, 3.59};
  ASSERT_EQ(levels.size(), published.size());
  EXPECT_TRUE(CheckSlices(shape, levels, 0).ok()) << CheckSlices(shape, levels, 0);
  LevelSpec& full = levels.emplace_back(LevelSpec{.percent = 100});
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    full.layers.push_back(FullExtent(shape, layer));
  }
  const double whole = Billions(shape, full.layers);
  for (size_t i = 0; i < published.size(); ++i) {
    SCOPED_TRACE(published[i]);
    const LevelSpec &level = levels[i], &next = levels[i + 1];
    const double billions = Billions(shape, level.layers);
    EXPECT_NEAR(whole - billions, 3.98 - published[i], 0.025);
    EXPECT_NEAR(level.percent, 100 * billions / whole, 0.51);
    EXPECT_LT(level.percent, next.percent);
    for (size_t layer = 0; layer < level.layers.size(); ++layer) {
      EXPECT_LE(level.layers[layer].heads, next.layers[layer].heads) << layer;
      EXPECT_LE(level.layers[layer].neurons, next.layers[layer].neurons) << layer;
      EXPECT_EQ(level.layers[layer].neurons % NeuronPanel(shape.d_ff), 0) << layer;
    }
  }
}

TEST(TrainedSlicesTest, OtherModelsHaveNone) {
  ModelShape e2b = E4b();
  e2b.layers = 30;
  EXPECT_TRUE(TrainedSlices(e2b).empty());
  ModelShape narrow = E4b();
  narrow.d_ff = 8192;
  EXPECT_TRUE(TrainedSlices(narrow).empty());
  ModelShape own_kv = E4b();
  own_kv.kv_sources[22] = 22;
  EXPECT_TRUE(TrainedSlices(own_kv).empty());
  ModelShape other = E4b();
  other.nested_slices = false;
  EXPECT_TRUE(TrainedSlices(other).empty());
}

}  // namespace
}  // namespace withy::engine
