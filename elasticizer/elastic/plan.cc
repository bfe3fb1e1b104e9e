#include "elasticizer/elastic/plan.h"

#include <algorithm>
#include <array>
#include <utility>

namespace withy::elastic {
namespace {

// Heads kept, in terms of a layer's share of parameters: fewer than neurons, as many, more.
constexpr std::array<double, 3> kHeadShares = {0.7, 1.0, 1.4};

}  // namespace

std::vector<LevelChoice> ChooseLevels(const Network& network, std::span<const int32_t> percents,
                                      std::span<const int32_t> anchors,
                                      const std::vector<Batch>& calibration) {
  std::vector<LevelChoice> levels;
  for (const int32_t percent : percents) {
    LevelChoice best;
    const engine::LevelSpec* below = levels.empty() ? nullptr : &levels.back().spec;
    for (const double head_share : kHeadShares) {
      LevelChoice choice{engine::PlanLevel(network.shape(), percent, anchors, head_share, below),
                         head_share, 0};
      if (!best.spec.layers.empty() && choice.spec.layers == best.spec.layers) continue;
      choice.loss = MeanLoss(network, calibration, {.extents = &choice.spec.layers});
      if (best.spec.layers.empty() || choice.loss < best.loss) best = std::move(choice);
    }
    levels.push_back(std::move(best));
  }
  return levels;
}

}  // namespace withy::elastic
