// Which cuts make a level: those that lose least for what they save.
#include "offline/elastic/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace withy::elastic {
namespace {

class ApplyBestCutsTest : public testing::Test {
 protected:
  ApplyBestCutsTest() {
    shape_.layers = 4;
    shape_.heads = 8;
    shape_.kv_heads = 2;
    shape_.head_dim = 64;
    shape_.d_ff = 512;
  }

  double Share(const engine::LevelSpec& level) const {
    double sum = 0;
    for (const engine::LayerExtent& extent : level.layers) {
      sum += engine::LayerParameters(shape_, extent);
    }
    return sum / shape_.layers / engine::LayerParameters(shape_, {shape_.heads, shape_.d_ff});
  }

  engine::LevelSpec Full() const {
    return {.percent = 100,
            .layers = std::vector<engine::LayerExtent>(static_cast<size_t>(shape_.layers),
                                                       {shape_.heads, shape_.d_ff})};
  }

  // The next level if cutting costs `loss_of`.
  engine::LevelSpec Cut(int32_t percent, const engine::LevelSpec& from,
                        const std::function<double(const LayerCut&)>& loss_of) const {
    std::vector<LayerCut> cuts = PossibleCuts(shape_, percent, from);
    for (LayerCut& cut : cuts) cut.loss = loss_of(cut);
    return ApplyBestCuts(shape_, percent, from, 0, cuts);
  }

  engine::ModelShape shape_;
};

TEST_F(ApplyBestCutsTest, EstimatesFollowTheImportanceThatIsRemoved) {
  const engine::LevelSpec from = Full();
  std::vector<LayerCut> cuts = PossibleCuts(shape_, 50, from);
  const std::vector<size_t> deepest = DeepestCuts(from, cuts);
  EXPECT_EQ(deepest.size(), 2 * from.layers.size());
  std::vector<PartImportance> units;
  for (const engine::LayerExtent& layer : from.layers) {
    PartImportance& part = units.emplace_back();
    for (int32_t u = layer.heads / shape_.query_heads_per_unit(); u > 0; --u)
      part.heads.push_back(u);
    for (int32_t n = layer.neurons; n > 0; --n) part.neurons.push_back(n);
  }
  constexpr double kWholeLoss = 2;
  for (const size_t i : deepest) cuts[i].loss = kWholeLoss + 1 + static_cast<double>(i);
  std::vector<LayerCut> estimated = cuts;
  EstimateCuts(shape_, from, units, kWholeLoss, estimated);
  size_t at = 0;
  for (const size_t deep : deepest) {
    EXPECT_EQ(estimated[deep].loss, cuts[deep].loss) << "measured ones stay";
    for (double before = kWholeLoss; at <= deep; ++at) {
      EXPECT_GT(estimated[at].loss, before) << "deeper cuts lose more";
      EXPECT_LE(estimated[at].loss, cuts[deep].loss);
      before = estimated[at].loss;
    }
  }
  // The first step of a layer's neurons removes the least important ones.
  const LayerCut& first = estimated[deepest[0] + 1];
  const LayerCut& whole = estimated[deepest[1]];
  const double removed = from.layers[0].neurons - first.extent.neurons;
  const double all = from.layers[0].neurons;
  EXPECT_NEAR((first.loss - kWholeLoss) / (whole.loss - kWholeLoss),
              removed * (removed + 1) / (all * (all + 1)), 1e-9);
}

TEST_F(ApplyBestCutsTest, LeavesAloneWhatIsDear) {
  const engine::LevelSpec level = Cut(60, Full(), [&](const LayerCut& cut) {
    const double units = (shape_.heads - cut.extent.heads) + (512 - cut.extent.neurons) / 64.0;
    return (cut.layer == 2 ? 10.0 : 0.1) * units;
  });
  EXPECT_NEAR(Share(level), 0.6, 0.01);
  EXPECT_EQ(level.layers[2], (engine::LayerExtent{8, 512}));
}

// The first cut of a part costs as much as all of it: whole parts are cut, not a little of
// each.
TEST_F(ApplyBestCutsTest, GoesDeepWhereTheFirstStepCostsAll) {
  const engine::LevelSpec level =
      Cut(73, Full(), [](const LayerCut& cut) { return cut.extent.heads < 8 ? 100.0 : 1.0; });
  EXPECT_NEAR(Share(level), 0.73, 0.01);  // two of four MLPs are 27 % of all
  int without_mlp = 0;
  for (const engine::LayerExtent& extent : level.layers) {
    EXPECT_EQ(extent.heads, 8);
    EXPECT_TRUE(extent.neurons == 512 || extent.neurons == 0) << extent.neurons;
    if (extent.neurons == 0) ++without_mlp;
  }
  EXPECT_EQ(without_mlp, 2);
}

TEST_F(ApplyBestCutsTest, LevelsAreNestedAndNearTheirShare) {
  for (const int32_t kv_heads : {2, 8}) {  // 8: levels cut KV heads
    shape_.kv_heads = kv_heads;
    engine::LevelSpec from = Full();
    for (const int32_t percent : {90, 80, 60, 35, 20, 15}) {
      const engine::LevelSpec level = Cut(percent, from, [](const LayerCut& cut) {
        return 0.01 * static_cast<double>((7 * cut.layer + 3) % 5) * (520 - cut.extent.neurons) +
               0.3 * (8 - cut.extent.heads);
      });
      EXPECT_NEAR(Share(level), percent / 100.0, 0.015) << percent << ", " << kv_heads;
      for (size_t i = 0; i < level.layers.size(); ++i) {
        EXPECT_LE(level.layers[i].heads, from.layers[i].heads);
        EXPECT_LE(level.layers[i].neurons, from.layers[i].neurons);
        EXPECT_EQ(level.layers[i].heads % shape_.query_heads_per_unit(), 0);
        EXPECT_EQ(level.layers[i].neurons % 64, 0);
        if (kv_heads == 8 && percent > 15) {
          EXPECT_GT(level.layers[i].heads, 0) << percent;
        }
      }
      from = level;
    }
  }
}

}  // namespace
}  // namespace withy::elastic
