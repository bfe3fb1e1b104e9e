#include "elasticizer/elastic/plan.h"

#include <algorithm>
#include <array>
#include <utility>

namespace withy::elastic {
namespace {

// Heads kept, in terms of a layer's share of parameters: fewer than neurons, as many, more.
constexpr std::array<double, 3> kHeadShares = {0.7, 1.0, 1.4};

// No layer computes less than at the level below.
void Nest(const engine::LevelSpec& below, engine::LevelSpec* spec) {
  for (size_t i = 0; i < below.layers.size(); ++i) {
    engine::LayerExtent& extent = spec->layers[i];
    extent.heads = std::max(extent.heads, below.layers[i].heads);
    extent.neurons = std::max(extent.neurons, below.layers[i].neurons);
  }
}

}  // namespace

std::vector<LevelChoice> ChooseLevels(const Network& network, std::span<const int32_t> percents,
                                      std::span<const int32_t> anchors,
                                      const std::vector<Batch>& calibration) {
  std::vector<LevelChoice> levels;
  for (const int32_t percent : percents) {
    LevelChoice best;
    for (const double head_share : kHeadShares) {
      LevelChoice choice{engine::PlanLevel(network.shape(), percent, anchors, head_share),
                         head_share, 0};
      if (!levels.empty()) Nest(levels.back().spec, &choice.spec);
      if (!best.spec.layers.empty() && choice.spec.layers == best.spec.layers) continue;
      choice.loss = MeanLoss(network, calibration, {.extents = &choice.spec.layers});
      if (best.spec.layers.empty() || choice.loss < best.loss) best = std::move(choice);
    }
    levels.push_back(std::move(best));
  }
  return levels;
}

}  // namespace withy::elastic
