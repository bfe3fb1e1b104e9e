#include "engine/weights/levels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "engine/weights/architecture/trained_slices.h"
#include "engine/weights/layout.h"

namespace withy::engine {
namespace {

constexpr std::array<std::string_view, kLoraParts> kPartNames = {
    "attn_in.a", "attn_output.a", "ffn_in.a",   "ffn_down.a", "attn_q.b",  "attn_k.b",
    "attn_v.b",  "attn_output.b", "ffn_gate.b", "ffn_up.b",   "ffn_down.b"};

// The least that a level computes of a layer.
LayerExtent LeastExtent(const ModelShape& s) {
  return {s.query_heads_per_unit(), NeuronPanel(s.d_ff)};
}

// Number of layers that a level does not cut.
int32_t AnchorCount(const ModelShape& s, int32_t available, double level) {
  const double least = LayerParameters(s, LeastExtent(s)) / LayerParameters(s, {s.heads, s.d_ff});
  for (const double share : {0.2, 0.1}) {
    const int32_t count = std::min(available, static_cast<int32_t>(std::lround(share * s.layers)));
    if (count == 0 || count >= s.layers) continue;
    const double others = (level * s.layers - count) / (s.layers - count);
    if (others >= std::max(level / 2, least)) return count;
  }
  return 0;
}

// Extent of a cut layer with about `parameters` parameters, at most `most`. Heads first, then
// neurons from the rest; if the neurons are out of range, more or fewer heads.
LayerExtent FitExtent(const ModelShape& s, double parameters, double head_share,
                      const LayerExtent& most) {
  const int32_t unit = s.query_heads_per_unit();
  const int32_t units = most.heads / unit;
  const int32_t panel = NeuronPanel(s.d_ff);
  const double share = parameters / LayerParameters(s, {s.heads, s.d_ff});
  const auto neurons_beside = [&](int32_t kept) {
    return (parameters - LayerParameters(s, {kept * unit, 0})) / 3.0;
  };
  int32_t kept = static_cast<int32_t>(std::lround(share * head_share * s.heads / unit));
  kept = std::clamp(kept, 1, units);
  while (kept < units && neurons_beside(kept + 1) >= most.neurons) ++kept;
  while (kept > 1 && 2 * neurons_beside(kept) < panel) --kept;
  const auto panels = static_cast<int32_t>(std::lround(neurons_beside(kept) / panel));
  return {kept * unit, std::clamp(panels * panel, panel, most.neurons)};
}

// Extents of a level too small for the minimum of every layer: drops units of heads and panels of
// neurons from the least important layers, in the ratio closest to `head_share`.
void LeaveOut(const ModelShape& s, double parameters, std::span<const int32_t> by_importance,
              double head_share, std::vector<LayerExtent>* layers) {
  const LayerExtent least = LeastExtent(s);
  const double per_unit = LayerParameters(s, least) - LayerParameters(s, {0, least.neurons});
  const double per_panel = LayerParameters(s, least) - LayerParameters(s, {least.heads, 0});
  double excess = -parameters;
  int32_t units = 0;
  int32_t panels = 0;
  for (LayerExtent& layer : *layers) {
    layer = {std::min(layer.heads, least.heads), std::min(layer.neurons, least.neurons)};
    excess += LayerParameters(s, layer);
    units += layer.heads > 0 ? 1 : 0;
    panels += layer.neurons > 0 ? 1 : 0;
  }
  const double tolerance = std::max(per_unit, per_panel) / 2;
  int32_t units_out = units;
  int32_t panels_out = panels;
  double nearest = std::numeric_limits<double>::infinity();
  for (int32_t out = 0; out <= units; ++out) {
    const double rest = (excess - out * per_unit) / per_panel;
    const auto others = std::clamp(static_cast<int32_t>(std::lround(rest)), 0, panels);
    if (std::abs(rest - others) * per_panel > tolerance) continue;
    const double ratio = (units - out + 0.5) / (panels - others + 0.5);
    const double distance = std::abs(std::log(ratio / head_share));
    if (distance >= nearest) continue;
    nearest = distance;
    units_out = out;
    panels_out = others;
  }
  for (size_t i = by_importance.size(); i-- > 0;) {
    LayerExtent& layer = (*layers)[static_cast<size_t>(by_importance[i])];
    if (layer.heads > 0 && units_out-- > 0) layer.heads = 0;
    if (layer.neurons > 0 && panels_out-- > 0) layer.neurons = 0;
  }
}

// `first`, then the other layers.
std::vector<int32_t> AllLayers(std::span<const int32_t> first, int32_t layers) {
  std::vector<int32_t> all(first.begin(), first.end());
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (std::find(first.begin(), first.end(), layer) == first.end()) all.push_back(layer);
  }
  return all;
}

class Reader {
 public:
  Reader(const GgufFile& file, const ModelShape& shape) : file_(file), shape_(shape) {}

  absl::StatusOr<LevelTable> Read() {
    if (!file_.Has("withy.level.percent")) return LevelTable{.levels = TrainedSlices(shape_)};
    WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> percent,
                           file_.GetIntArray("withy.level.percent"));
    WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> heads, Extents("withy.level.heads", percent));
    WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> neurons,
                           Extents("withy.level.neurons", percent));
    if (percent.size() > kMaxLevels) {
      return Wrong("withy.level.percent", static_cast<int64_t>(percent.size()),
                   absl::StrCat("at most ", kMaxLevels, " levels"));
    }
    LevelTable table;
    const auto layers = static_cast<size_t>(shape_.layers);
    for (size_t i = 0; i < percent.size(); ++i) {
      if (percent[i] < 1 || percent[i] > 99 || (i > 0 && percent[i] <= percent[i - 1])) {
        return Wrong("withy.level.percent", percent[i], "ascending numbers from 1 to 99");
      }
      LevelSpec& level = table.levels.emplace_back();
      level.percent = static_cast<int32_t>(percent[i]);
      for (size_t layer = 0; layer < layers; ++layer) {
        WITHY_ASSIGN_OR_RETURN(const LayerExtent extent,
                               Extent(static_cast<int32_t>(layer), heads[i * layers + layer],
                                      neurons[i * layers + layer]));
        level.layers.push_back(extent);
      }
    }
    WITHY_RETURN_IF_ERROR(CheckNested(table.levels));
    if (file_.Has("withy.lora.rank")) {
      WITHY_ASSIGN_OR_RETURN(const int64_t rank, file_.GetInt("withy.lora.rank"));
      if (rank < 0 || rank > kMaxLoraRank) {
        return Wrong("withy.lora.rank", rank, absl::StrCat("0 to ", kMaxLoraRank));
      }
      table.lora_rank = static_cast<int32_t>(rank);
    }
    return table;
  }

 private:
  absl::Status Wrong(std::string_view key, int64_t value, std::string_view wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", ToAbsl(key), " is ", value, "; it must be ",
                     ToAbsl(wanted), ": make the levels again with ./withy elasticize"));
  }

  absl::StatusOr<std::vector<int64_t>> Extents(std::string_view key,
                                               const std::vector<int64_t>& percent) {
    WITHY_ASSIGN_OR_RETURN(std::vector<int64_t> values, file_.GetIntArray(key));
    const size_t wanted = percent.size() * static_cast<size_t>(shape_.layers);
    if (values.size() == wanted) return values;
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", ToAbsl(key), " has ", values.size(), " numbers; ",
                     percent.size(), " levels of ", shape_.layers, " layers need ", wanted));
  }

  // In each layer a level must not exceed the next higher one.
  absl::Status CheckNested(const std::vector<LevelSpec>& levels) const {
    for (size_t i = 0; i + 1 < levels.size(); ++i) {
      for (size_t layer = 0; layer < levels[i].layers.size(); ++layer) {
        const LayerExtent& now = levels[i].layers[layer];
        const LayerExtent& above = levels[i + 1].layers[layer];
        if (now.heads <= above.heads && now.neurons <= above.neurons) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": level ", levels[i].percent, " % has ", now.heads,
                         " heads and ", now.neurons, " neurons in layer ", layer, ", level ",
                         levels[i + 1].percent, " % has ", above.heads, " and ", above.neurons,
                         "; a level must be part of the one above: make the levels "
                         "again with ./withy elasticize"));
      }
    }
    return absl::OkStatus();
  }

  // Whole units of heads are also whole panels of attn_output.
  absl::StatusOr<LayerExtent> Extent(int32_t layer, int64_t heads, int64_t neurons) const {
    const int32_t unit = shape_.query_heads_per_unit();
    if (heads < 0 || heads > shape_.heads || heads % unit != 0) {
      return Wrong("withy.level.heads", heads,
                   absl::StrCat("a multiple of ", unit, " from 0 to ", shape_.heads));
    }
    const int32_t all = shape_.NeuronsOf(layer);
    const int32_t panel = NeuronPanel(all);
    if (neurons < 0 || neurons > all || (neurons != all && neurons % panel != 0)) {
      return Wrong("withy.level.neurons", neurons,
                   absl::StrCat("a multiple of ", panel, " from 0 to ", all));
    }
    return LayerExtent{static_cast<int32_t>(heads), static_cast<int32_t>(neurons)};
  }

  const GgufFile& file_;
  const ModelShape& shape_;
};

}  // namespace

double LayerParameters(const ModelShape& shape, const LayerExtent& extent) {
  return 2.0 * shape.head_dim * (extent.heads + shape.kv_heads_of(extent.heads)) +
         3.0 * extent.neurons;
}

LevelSpec PlanLevel(const ModelShape& shape, int32_t percent, std::span<const int32_t> anchors,
                    double head_share, const LevelSpec* above) {
  const double level = percent / 100.0;
  const LayerExtent full{shape.heads, shape.d_ff};
  const int32_t whole = AnchorCount(shape, static_cast<int32_t>(anchors.size()), level);
  LevelSpec spec{.percent = percent};
  spec.layers.assign(static_cast<size_t>(shape.layers), {});
  const double wanted = LayerParameters(shape, full) * level;
  if (wanted < LayerParameters(shape, LeastExtent(shape))) {
    spec.layers = above == nullptr ? std::vector(spec.layers.size(), full) : above->layers;
    LeaveOut(shape, wanted * shape.layers, AllLayers(anchors, shape.layers), head_share,
             &spec.layers);
    return spec;
  }
  const std::vector<LayerExtent> most =
      above == nullptr ? std::vector(spec.layers.size(), full) : above->layers;
  const std::vector<int32_t> order = AllLayers(anchors, shape.layers);
  double left = wanted * shape.layers;
  for (const int32_t layer : anchors.first(static_cast<size_t>(whole))) {
    const auto i = static_cast<size_t>(layer);
    spec.layers[i] = most[i];
    left -= LayerParameters(shape, spec.layers[i]);
  }
  std::vector<int32_t> others(order.begin() + whole, order.end());
  std::sort(others.begin(), others.end());
  for (size_t k = 0; k < others.size(); ++k) {
    const auto i = static_cast<size_t>(others[k]);
    spec.layers[i] =
        FitExtent(shape, left / static_cast<double>(others.size() - k), head_share, most[i]);
    left -= LayerParameters(shape, spec.layers[i]);
  }
  return spec;
}

int32_t LeastLevel(const ModelShape& shape) {
  const double share =
      LayerParameters(shape, {0, 0}) / LayerParameters(shape, {shape.heads, shape.d_ff});
  return std::max(1, static_cast<int32_t>(std::ceil(100 * share)));
}

absl::Status CheckPercents(const ModelShape& shape, std::span<const int32_t> percents) {
  if (percents.size() > kMaxLevels) {
    return absl::InvalidArgumentError(
        absl::StrCat(percents.size(), " levels: a file has at most ", kMaxLevels));
  }
  for (size_t i = 0; i < percents.size(); ++i) {
    if (percents[i] < 1 || percents[i] > 99 || (i > 0 && percents[i] <= percents[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat("level ", percents[i], " %: levels are ascending numbers from 1 to 99"));
    }
  }
  const int32_t least = LeastLevel(shape);
  if (percents.empty() || percents.front() >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("level ", percents.front(),
                   " %: less than the K and V that every level of this shape computes; ", least,
                   " % is the least"));
}

std::vector<LevelSpec> PlanLevels(const ModelShape& shape, std::span<const int32_t> percents,
                                  std::span<const int32_t> anchors, double head_share) {
  std::vector<LevelSpec> levels(percents.size());
  for (size_t i = levels.size(); i-- > 0;) {
    const LevelSpec* above = i + 1 < levels.size() ? &levels[i + 1] : nullptr;
    levels[i] = PlanLevel(shape, percents[i], anchors, head_share, above);
  }
  return levels;
}

std::string LoraName(int32_t percent, int32_t layer, LoraPart part) {
  return absl::StrCat("withy.lora.", percent, ".blk.", layer, ".",
                      ToAbsl(kPartNames[static_cast<size_t>(part)]));
}

LoraShape LoraShapeOf(LoraPart part, const ModelShape& shape, const LayerExtent& extent,
                      int32_t rank) {
  if ((IsAttention(part) ? extent.heads : extent.neurons) == 0) return {};
  switch (part) {
    case LoraPart::kAttentionIn:
      return {3 * rank, shape.d_model};
    case LoraPart::kAttentionOutIn:
    case LoraPart::kQ:
      return {rank, extent.heads * shape.head_dim};
    case LoraPart::kFfnIn:
      return {2 * rank, shape.d_model};
    case LoraPart::kK:
    case LoraPart::kV:
      return {rank, shape.kv_heads_of(extent.heads) * shape.head_dim};
    case LoraPart::kAttentionOut:
    case LoraPart::kDown:
      return {rank, shape.d_model};
    case LoraPart::kDownIn:
    case LoraPart::kGate:
    case LoraPart::kUp:
      return {rank, extent.neurons};
  }
  return {};
}

absl::Status CheckSlices(const ModelShape& shape, std::span<const LevelSpec> levels,
                         int32_t lora_rank) {
  if (!shape.nested_slices) return absl::OkStatus();
  if (lora_rank > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("withy.lora.rank is ", lora_rank, "; levels of the architecture ",
                     shape.architecture, " are slices and have no LoRA: make it 0"));
  }
  for (const LevelSpec& level : levels) {
    for (int32_t layer = 0; layer < static_cast<int32_t>(level.layers.size()); ++layer) {
      const LayerExtent& e = level.layers[static_cast<size_t>(layer)];
      const bool left_out = e == LayerExtent{};
      if (left_out ? shape.KvSourceOf(layer) != layer : e.heads == shape.heads && e.neurons > 0) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("level ", level.percent, " % has ", e.heads, " heads and ", e.neurons,
                       " neurons in layer ", layer, "; a slice has all ", shape.heads,
                       " heads and some neurons, or, of layers that share K and V, none of both"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHasLevels(const ModelShape& shape) {
  if (shape.nested_slices) return absl::OkStatus();
  const bool as_llama =
      !shape.layer_norms && !shape.product_biases && shape.gated_mlp && shape.experts == 0;
  if (as_llama && !shape.ChangesBranches() && shape.pre_norms && shape.qk_norm != QkNorm::kWhole) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("models of the architecture ", shape.architecture, ", with ", BeyondLlama(shape),
                   ", cannot have elastic levels: use the model without them"));
}

absl::StatusOr<LevelTable> ReadLevels(const GgufFile& file, const ModelShape& shape) {
  WITHY_ASSIGN_OR_RETURN(LevelTable table, Reader(file, shape).Read());
  if (!table.levels.empty()) {
    absl::Status status = CheckHasLevels(shape);
    if (status.ok()) status = CheckSlices(shape, table.levels, table.lora_rank);
    if (!status.ok()) return Annotate(status, file.path());
  }
  return table;
}

}  // namespace withy::engine
