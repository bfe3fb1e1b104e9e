#include "offline/inflate/placement.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/weights/layout.h"

namespace withy::inflate {
namespace {

using engine::LayerExtent;
using engine::ModelShape;

// Weights of a layer in units of the width: two per query head and KV head, three per neuron.
double Weights(const ModelShape& s, const LayerExtent& extent) {
  return 2.0 * s.head_dim * (extent.heads + s.kv_heads) + 3.0 * extent.neurons;
}

absl::Status Need(std::string_view what, int32_t have, int32_t least, int32_t unit) {
  if (have >= least && have % unit == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the target's ", ToAbsl(what), " is ", have, "; this model needs at least ", least,
      unit > 1 ? absl::StrCat(", a multiple of ", unit) : "", ": choose a larger shape"));
}

absl::Status CheckSource(const ModelShape& s) {
  for (const auto& [what, value] : {std::pair<const char*, int32_t>{"width", s.d_model},
                                    {"head dimension", s.head_dim},
                                    {"neurons", s.d_ff}}) {
    if (value % kBlock == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("the model's ", what, " is ", value,
                                                   ", not a multiple of ", kBlock,
                                                   ": it cannot be inflated"));
  }
  return absl::OkStatus();
}

// Appends positions for the units [places->size(), until), spread over [begin, end).
void SpreadInto(int32_t until, int32_t begin, int32_t end, std::vector<int32_t>* places) {
  const int32_t count = until - static_cast<int32_t>(places->size());
  for (const int32_t place : Spread(count, end - begin)) places->push_back(begin + place);
}

// Places the units of one layer and computes its levels.
class LayerPlacer {
 public:
  LayerPlacer(const ModelShape& source, const ModelShape& target)
      : s_(source), t_(target), panel_(engine::NeuronPanel(target.d_ff)) {}

  // `owed` [levels]: weights by which previous layers fell short of the levels' shares.
  absl::Status Run(const std::vector<LayerExtent>& levels, std::vector<double>* owed,
                   LayerPlacement* layer) {
    layer->ranks = Spread(s_.query_heads_per_group(), t_.query_heads_per_group());
    const size_t n = levels.size();
    layer->extents.resize(n);
    for (size_t i = 0; i < n; ++i) layer->extents[i].heads = CutHeads(layer->ranks, levels[i]);
    for (size_t i = n; i-- > 0;) {  // from the last: what a level must leave for those above it
      const LayerExtent above = i + 1 < n ? levels[i + 1] : LayerExtent{s_.heads, s_.d_ff};
      const int32_t room = i + 1 < n ? most_.front() : t_.d_ff;
      most_.insert(most_.begin(), (room - (above.neurons - levels[i].neurons)) / panel_ * panel_);
    }
    LayerExtent below;
    int32_t cut = 0;
    std::vector<int32_t>& blocks = layer->neuron_blocks;
    for (size_t i = 0; i < n; ++i) {
      LayerExtent& extent = layer->extents[i];
      const int32_t least = cut + levels[i].neurons - below.neurons;
      extent.neurons = CutNeurons(levels[i], extent.heads, least, most_[i], &(*owed)[i]);
      if (extent.neurons < least) {
        return absl::InvalidArgumentError(
            absl::StrCat("the target's ", t_.d_ff, " neurons leave no whole panels of ", panel_,
                         " for the levels' cuts; choose a shape with more neurons"));
      }
      SpreadInto(levels[i].neurons / kBlock, cut / kBlock, extent.neurons / kBlock, &blocks);
      cut = extent.neurons;
      below = levels[i];
    }
    SpreadInto(s_.d_ff / kBlock, cut / kBlock, t_.d_ff / kBlock, &blocks);
    return absl::OkStatus();
  }

 private:
  bool Whole(const LayerExtent& extent) const {
    return extent.heads == s_.heads && extent.neurons == s_.d_ff;
  }

  // All ranks up to the level's last real one, plus those before the next real one that bring it
  // closest to its share.
  int32_t CutHeads(const std::vector<int32_t>& places, const LayerExtent& level) const {
    const int32_t all = t_.query_heads_per_group();
    const auto ranks = static_cast<size_t>(level.heads / s_.kv_heads);
    if (ranks == 0) return 0;
    if (ranks >= places.size()) return t_.heads;
    const auto near = static_cast<int32_t>(
        std::lround(static_cast<double>(ranks) * all / static_cast<double>(places.size())));
    return std::clamp(near, places[ranks - 1] + 1, places[ranks]) * t_.kv_heads;
  }

  // The number of panels that brings the level's share of the layers so far closest to the small
  // model's.
  int32_t CutNeurons(const LayerExtent& level, int32_t heads, int32_t least, int32_t most,
                     double* owed) const {
    if (Whole(level)) return t_.d_ff;
    const double share = Weights(s_, level) / Weights(s_, {s_.heads, s_.d_ff});
    *owed += share * Weights(t_, {t_.heads, t_.d_ff}) - Weights(t_, {heads, 0});
    const double wanted = *owed / 3.0;
    const auto near = static_cast<int32_t>(std::lround(wanted / panel_)) * panel_;
    const int32_t needed = level.neurons > 0 ? std::max(least, panel_) : least;
    const int32_t lowest = (needed + panel_ - 1) / panel_ * panel_;
    const int32_t neurons = std::min(std::max(near, lowest), most);
    *owed -= 3.0 * neurons;
    return neurons;
  }

  const ModelShape& s_;
  const ModelShape& t_;
  const int32_t panel_;
  std::vector<int32_t> most_;  // maximum neurons per level
};

}  // namespace

std::vector<int32_t> Spread(int32_t count, int32_t room) {
  std::vector<int32_t> places;
  for (int64_t i = 0; i < count; ++i) {
    places.push_back(static_cast<int32_t>((2 * i + 1) * room / (2 * count)));
  }
  return places;
}

HeadCounts FitHeads(const ModelShape& source, const TargetShape& target) {
  const int32_t group = source.query_heads_per_group();
  if (target.kv_heads >= source.kv_heads && target.kv_heads > 0 &&
      target.heads % target.kv_heads == 0 && target.heads / target.kv_heads >= group) {
    return {target.heads, target.kv_heads};
  }
  const int32_t query = target.heads + target.kv_heads - source.kv_heads;
  const int32_t ranks = (query + source.kv_heads - 1) / source.kv_heads;
  return {std::max(ranks, group) * source.kv_heads, source.kv_heads};
}

absl::StatusOr<Placement> Place(const ModelShape& source, const engine::LevelTable& levels,
                                const TargetShape& target) {
  WITHY_RETURN_IF_ERROR(CheckSource(source));
  if (source.cuts_kv_heads() && !levels.levels.empty()) {
    return absl::InvalidArgumentError(
        "levels that cut KV heads cannot be carried over; inflate a model with three or more query "
        "heads a KV head, or one without levels");
  }
  WITHY_RETURN_IF_ERROR(Need("number of layers", target.layers, source.layers, 1));
  WITHY_RETURN_IF_ERROR(Need("width", target.d_model, source.d_model, kBlock));
  WITHY_RETURN_IF_ERROR(Need("number of neurons", target.d_ff, source.d_ff, kBlock));
  Placement placement{.shape = source, .width_blocks = {}, .groups = {}, .layers = {}};
  ModelShape& t = placement.shape;
  const HeadCounts heads = FitHeads(source, target);
  t.layers = target.layers;
  t.d_model = target.d_model;
  t.d_ff = target.d_ff;
  t.heads = heads.heads;
  t.kv_heads = heads.kv_heads;
  // The mean square over the wider vector is smaller by the ratio of the widths. The norms' weights
  // compensate for it (inflate.cc), and the epsilon is scaled accordingly.
  t.rms_epsilon =
      source.rms_epsilon * static_cast<float>(source.d_model) / static_cast<float>(target.d_model);
  placement.width_blocks = Spread(source.d_model / kBlock, t.d_model / kBlock);
  placement.groups = Spread(source.kv_heads, t.kv_heads);
  const std::vector<int32_t> real = Spread(source.layers, t.layers);
  std::vector<double> owed(levels.levels.size());
  for (int32_t layer = 0; layer < t.layers; ++layer) {
    LayerPlacement& placed = placement.layers.emplace_back();
    const auto found = std::lower_bound(real.begin(), real.end(), layer);
    placed.real = found != real.end() && *found == layer;
    placed.source = placed.real ? static_cast<int32_t>(found - real.begin())
                                : static_cast<int32_t>(int64_t{layer} * source.layers / t.layers);
    std::vector<LayerExtent> extents;
    for (const engine::LevelSpec& level : levels.levels) {
      extents.push_back(level.layers[static_cast<size_t>(placed.source)]);
    }
    WITHY_RETURN_IF_ERROR(LayerPlacer(source, t).Run(extents, &owed, &placed));
  }
  return placement;
}

}  // namespace withy::inflate
