#include "offline/elastic/plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/weights/layout.h"

namespace withy::elastic {
namespace {

// Share of heads relative to a layer's share of parameters: fewer than neurons, equal, more.
constexpr std::array<double, kSplitCount> kHeadShares = {0.5, 0.7, 1.0, 1.4, 2.0};

constexpr int32_t kCutSteps = 8;  // steps for one layer's heads, and for its neurons

double Parameters(const engine::ModelShape& shape, const engine::LevelSpec& level) {
  double sum = 0;
  for (const engine::LayerExtent& extent : level.layers) {
    sum += engine::LayerParameters(shape, extent);
  }
  return sum;
}

// Values in [least, now), descending, in steps of an eighth of `all`, at least one.
std::vector<int32_t> Lesser(int32_t now, int32_t least, int32_t all) {
  const int32_t step = (all + kCutSteps - 1) / kCutSteps;
  std::vector<int32_t> lesser;
  for (int32_t count = (now - 1) / step * step; count > least; count -= step) {
    lesser.push_back(count);
  }
  if (least < now) lesser.push_back(least);
  return lesser;
}

}  // namespace

std::vector<LayerCut> PossibleCuts(const engine::ModelShape& shape, int32_t percent,
                                   const engine::LevelSpec& from) {
  const int32_t unit = shape.query_heads_per_unit();
  const int32_t panel = engine::NeuronPanel(shape.d_ff);
  const double wanted = percent / 100.0 * engine::LayerParameters(shape, {shape.heads, shape.d_ff});
  const bool heads_stay =
      shape.cuts_kv_heads() && wanted >= engine::LayerParameters(shape, {unit, 0});
  std::vector<LayerCut> cuts;
  for (size_t i = 0; i < from.layers.size(); ++i) {
    const engine::LayerExtent& now = from.layers[i];
    const int32_t least = heads_stay ? std::min(1, now.heads / unit) : 0;
    for (const int32_t units : Lesser(now.heads / unit, least, shape.heads / unit)) {
      cuts.push_back({i, {units * unit, now.neurons}});
    }
    const int32_t panels = (now.neurons + panel - 1) / panel;
    for (const int32_t kept : Lesser(panels, 0, (shape.d_ff + panel - 1) / panel)) {
      cuts.push_back({i, {now.heads, kept * panel}});
    }
  }
  return cuts;
}

std::vector<size_t> DeepestCuts(const engine::LevelSpec& from, std::span<const LayerCut> cuts) {
  std::vector<size_t> deepest;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const auto part = [&](const LayerCut& cut) {
      return std::pair(cut.layer, cut.extent.heads != from.layers[cut.layer].heads);
    };
    // They descend within a part.
    if (i + 1 == cuts.size() || part(cuts[i + 1]) != part(cuts[i])) deepest.push_back(i);
  }
  return deepest;
}

void EstimateCuts(const engine::ModelShape& shape, const engine::LevelSpec& from,
                  std::span<const PartImportance> units, double whole, std::span<LayerCut> cuts) {
  const auto removed = [&](const LayerCut& cut) {
    const PartImportance& layer = units[cut.layer];
    const bool heads = cut.extent.heads != from.layers[cut.layer].heads;
    const std::vector<double>& all = heads ? layer.heads : layer.neurons;
    const int32_t kept =
        heads ? cut.extent.heads / shape.query_heads_per_unit() : cut.extent.neurons;
    return std::accumulate(all.begin() + kept, all.end(), 0.0);
  };
  size_t first = 0;
  for (const size_t deepest : DeepestCuts(from, cuts)) {
    const double loss = cuts[deepest].loss - whole;
    const double all = removed(cuts[deepest]);
    for (; first < deepest; ++first) {
      cuts[first].loss = whole + (all > 0 ? loss * removed(cuts[first]) / all : 0);
    }
    first = deepest + 1;
  }
}

engine::LevelSpec ApplyBestCuts(const engine::ModelShape& shape, int32_t percent,
                                const engine::LevelSpec& from, double whole,
                                std::span<const LayerCut> cuts) {
  engine::LevelSpec level{.percent = percent, .layers = from.layers};
  const double full = engine::LayerParameters(shape, {shape.heads, shape.d_ff});
  const double wanted = percent / 100.0 * full * shape.layers;
  // Loss so far from each layer's heads and neurons.
  std::vector<std::array<double, 2>> lost(level.layers.size(), {0, 0});
  // A level may fall short of its share by half of this.
  const double panel = engine::LayerParameters(shape, {0, engine::NeuronPanel(shape.d_ff)}) -
                       engine::LayerParameters(shape, {0, 0});
  const auto cuts_heads = [&](const LayerCut& cut) {
    return cut.extent.heads != from.layers[cut.layer].heads;
  };
  const auto lost_so_far = [&](const LayerCut& cut) -> double& {
    return lost[cut.layer][cuts_heads(cut) ? 0 : 1];
  };
  const auto after = [&](const LayerCut& cut) {
    const engine::LayerExtent& now = level.layers[cut.layer];
    return cuts_heads(cut) ? engine::LayerExtent{cut.extent.heads, now.neurons}
                           : engine::LayerExtent{now.heads, cut.extent.neurons};
  };
  while (true) {
    const double excess = Parameters(shape, level) - wanted;
    const LayerCut* best = nullptr;
    double best_rate = 0;
    for (const LayerCut& cut : cuts) {
      const double saved = engine::LayerParameters(shape, level.layers[cut.layer]) -
                           engine::LayerParameters(shape, after(cut));
      if (saved <= 0 || saved > excess + panel / 2) continue;
      const double rate = (cut.loss - whole - lost_so_far(cut)) / saved;
      if (best != nullptr && rate >= best_rate) continue;
      best = &cut;
      best_rate = rate;
    }
    if (best == nullptr) return level;
    level.layers[best->layer] = after(*best);
    lost_so_far(*best) = best->loss - whole;
  }
}

std::vector<LevelChoice> LevelCandidates(const engine::ModelShape& shape, int32_t percent,
                                         std::span<const int32_t> anchors,
                                         const engine::LevelSpec* above,
                                         const engine::LevelSpec* least) {
  std::vector<LevelChoice> candidates;
  if (least != nullptr) candidates.push_back({.spec = *least, .head_share = 0});
  for (const double head_share : kHeadShares) {
    LevelChoice choice{engine::PlanLevel(shape, percent, anchors, head_share, above), head_share,
                       0};
    const bool known = std::any_of(
        candidates.begin(), candidates.end(),
        [&](const LevelChoice& other) { return other.spec.layers == choice.spec.layers; });
    if (!known) candidates.push_back(std::move(choice));
  }
  return candidates;
}

const LevelChoice& BestChoice(std::span<const LevelChoice> tried) {
  return *std::min_element(
      tried.begin(), tried.end(),
      [](const LevelChoice& a, const LevelChoice& b) { return a.loss < b.loss; });
}

}  // namespace withy::elastic
