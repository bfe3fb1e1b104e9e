#include "elasticizer/elastic/plan.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace withy::elastic {
namespace {

// Heads kept, in terms of a layer's share of parameters: fewer than neurons, as many, more.
constexpr std::array<double, 5> kHeadShares = {0.5, 0.7, 1.0, 1.4, 2.0};

}  // namespace

LevelChoice ChooseLevel(const engine::ModelShape& shape, int32_t percent,
                        std::span<const int32_t> anchors, const engine::LevelSpec* above,
                        const LossOfLevel& loss_of, const train::Workers& workers) {
  std::vector<LevelChoice> tried;
  for (const double head_share : kHeadShares) {
    LevelChoice choice{engine::PlanLevel(shape, percent, anchors, head_share, above), head_share,
                       0};
    const bool known = std::any_of(tried.begin(), tried.end(), [&](const LevelChoice& other) {
      return other.spec.layers == choice.spec.layers;
    });
    if (known) continue;
    tried.push_back(std::move(choice));
  }
  workers.Run(static_cast<int64_t>(tried.size()), [&](int64_t i) {
    LevelChoice& choice = tried[static_cast<size_t>(i)];
    choice.loss = loss_of(choice.spec);
  });
  return *std::min_element(
      tried.begin(), tried.end(),
      [](const LevelChoice& a, const LevelChoice& b) { return a.loss < b.loss; });
}

}  // namespace withy::elastic
