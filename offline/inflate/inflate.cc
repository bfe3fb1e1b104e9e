#include "offline/inflate/inflate.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/weights/layout.h"
#include "offline/inflate/scatter.h"

namespace withy::inflate {
namespace {

using engine::GgmlType;
using engine::LayerExtent;
using engine::LoraPart;
using engine::TensorInfo;

struct NamedShape {
  const char* name;
  TargetShape shape;
};
constexpr NamedShape kShapes[] = {
    {"smollm2-135m", {.layers = 30, .d_model = 576, .heads = 9, .kv_heads = 3, .d_ff = 1536}},
    {"smollm2-360m", {.layers = 32, .d_model = 960, .heads = 15, .kv_heads = 5, .d_ff = 2560}},
    {"tinyllama-1.1b", {.layers = 22, .d_model = 2048, .heads = 32, .kv_heads = 4, .d_ff = 5632}},
    // 24 heads of 128 on 8 KV heads: heads of 64 have as many attention weights with 56.
    {"llama3.2-3b", {.layers = 28, .d_model = 3072, .heads = 56, .kv_heads = 8, .d_ff = 8192}}};

class Inflater {
 public:
  Inflater(const engine::GgufFile& source, uint64_t seed)
      : source_(source), scatterer_(source, seed) {}

  absl::Status Run(const TargetShape& target, std::string_view name, const std::string& path,
                   const std::function<void(uint64_t, uint64_t)>& progress) {
    WITHY_ASSIGN_OR_RETURN(s_, engine::ReadShape(source_));
    WITHY_ASSIGN_OR_RETURN(levels_, engine::ReadLevels(source_, s_));
    WITHY_ASSIGN_OR_RETURN(placement_, Place(s_, levels_, target));
    width_ = Expand(placement_.width_blocks, t().d_model / kBlock, 1);
    width_elements_ = Expand(placement_.width_blocks, t().d_model / kBlock, kBlock);
    WITHY_RETURN_IF_ERROR(RefuseOthers());
    SetMetadata(name);
    WITHY_RETURN_IF_ERROR(AddEnds());
    for (int32_t layer = 0; layer < t().layers; ++layer) WITHY_RETURN_IF_ERROR(AddLayer(layer));
    for (size_t i = 0; i < levels_.levels.size(); ++i) WITHY_RETURN_IF_ERROR(AddLora(i));
    return writer_.Write(path, progress);
  }

 private:
  const engine::ModelShape& t() const { return placement_.shape; }
  const LayerPlacement& At(int32_t layer) const {
    return placement_.layers[static_cast<size_t>(layer)];
  }

  void SetMetadata(std::string_view name) {
    const std::string a = s_.architecture + ".";
    writer_.CopyMetadata(source_, [](std::string_view key) { return key.starts_with("withy."); });
    writer_.SetString("general.name", absl::StrCat(s_.name.empty() ? "model" : s_.name,
                                                   " inflated to ", ToAbsl(name)));
    const auto count = [&](const char* key, int32_t value) {
      writer_.Set<uint32_t>(a + key, static_cast<uint32_t>(value));
    };
    count("block_count", t().layers);
    count("embedding_length", t().d_model);
    count("feed_forward_length", t().d_ff);
    count("attention.head_count", t().heads);
    count("attention.head_count_kv", t().kv_heads);
    count("attention.key_length", t().head_dim);
    count("attention.value_length", t().head_dim);
    count("rope.dimension_count", t().head_dim);
    writer_.Set<float>(a + "attention.layer_norm_rms_epsilon", t().rms_epsilon);
    if (!levels_.levels.empty()) SetLevels();
  }

  void SetLevels() {
    std::vector<uint32_t> percents;
    std::vector<uint32_t> heads;
    std::vector<uint32_t> neurons;
    for (size_t i = 0; i < levels_.levels.size(); ++i) {
      percents.push_back(static_cast<uint32_t>(levels_.levels[i].percent));
      for (const LayerPlacement& layer : placement_.layers) {
        heads.push_back(static_cast<uint32_t>(layer.extents[i].heads));
        neurons.push_back(static_cast<uint32_t>(layer.extents[i].neurons));
      }
    }
    writer_.SetArray<uint32_t>("withy.level.percent", percents);
    writer_.SetArray<uint32_t>("withy.level.heads", heads);
    writer_.SetArray<uint32_t>("withy.level.neurons", neurons);
    if (levels_.lora_rank > 0) {
      writer_.Set<uint32_t>("withy.lora.rank", static_cast<uint32_t>(levels_.lora_rank));
    }
    const auto order = source_.GetIntArray("withy.level.anchors");
    if (!order.ok()) return;
    std::vector<uint32_t> anchors;
    for (const int64_t small : *order) {
      for (int32_t layer = 0; layer < t().layers; ++layer) {
        if (At(layer).source == small) anchors.push_back(static_cast<uint32_t>(layer));
      }
    }
    writer_.SetArray<uint32_t>("withy.level.anchors", anchors);
  }

  // Anything that is not carried over would be lost silently.
  absl::Status RefuseOthers() const {
    static constexpr std::string_view kParts[] = {
        "attn_norm.weight",   "ffn_norm.weight",    "attn_q.weight",      "attn_k.weight",
        "attn_v.weight",      "attn_q.bias",        "attn_k.bias",        "attn_v.bias",
        "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight", "ffn_gate.weight",
        "ffn_up.weight",      "ffn_down.weight"};
    for (const TensorInfo& tensor : source_.tensors()) {
      const std::string_view name = tensor.name;
      const size_t dot = name.starts_with("blk.") ? name.find('.', 4) : std::string_view::npos;
      const bool known =
          name.starts_with("withy.lora.") || name == "token_embd.weight" ||
          name == "output.weight" || name == "output_norm.weight" || name == "rope_freqs.weight" ||
          (dot != std::string_view::npos && std::find(std::begin(kParts), std::end(kParts),
                                                      name.substr(dot + 1)) != std::end(kParts));
      if (!known) {
        return absl::UnimplementedError(absl::StrCat(source_.path(), ": tensor ", tensor.name,
                                                     " is none of those that can be inflated"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddEnds() {
    const Map vocabulary = Identity(s_.vocab_size);
    WITHY_RETURN_IF_ERROR(Matrix("token_embd.weight", "token_embd.weight", vocabulary, width_,
                                 Filler::kZero, Filler::kZero));
    if (source_.FindTensor("output.weight") != nullptr) {
      WITHY_RETURN_IF_ERROR(Matrix("output.weight", "output.weight", vocabulary, width_,
                                   Filler::kRandom, Filler::kRandom));
    }
    if (const TensorInfo* factors = source_.FindTensor("rope_freqs.weight"); factors != nullptr) {
      writer_.AddTensor(factors->name, factors->type, factors->dims, source_.Data(*factors));
    }
    return Norm("output_norm.weight", "output_norm.weight");
  }

  absl::Status AddLayer(int32_t layer) {
    const LayerPlacement& placed = At(layer);
    const std::string blk = absl::StrCat("blk.", layer, ".");
    const std::string from = absl::StrCat("blk.", placed.source, ".");
    const int32_t head_blocks = s_.head_dim / kBlock;
    const int32_t ranks = t().query_heads_per_group();
    const Map q = Heads(FileOrder(placed, ranks), s_.head_dim);
    const Map q_blocks = Heads(FileOrder(placed, ranks), head_blocks);
    const Map kv = Expand(placement_.groups, t().kv_heads, s_.head_dim);
    const Map neurons = Expand(placed.neuron_blocks, t().d_ff / kBlock, kBlock);
    const Map neuron_blocks = Expand(placed.neuron_blocks, t().d_ff / kBlock, 1);
    const auto add = [&](const char* part, const Map& rows, const Map& blocks, Filler filler) {
      return placed.real
                 ? Matrix(blk + part, from + part, rows, blocks, filler, filler)
                 : Matrix(blk + part, from + part, Map(rows.size(), -1), blocks, filler, filler);
    };
    WITHY_RETURN_IF_ERROR(Norm(blk + "attn_norm.weight", from + "attn_norm.weight"));
    WITHY_RETURN_IF_ERROR(Norm(blk + "ffn_norm.weight", from + "ffn_norm.weight"));
    WITHY_RETURN_IF_ERROR(add("attn_q.weight", q, width_, Filler::kRandom));
    WITHY_RETURN_IF_ERROR(add("attn_k.weight", kv, width_, Filler::kRandom));
    WITHY_RETURN_IF_ERROR(add("attn_v.weight", kv, width_, Filler::kRandom));
    WITHY_RETURN_IF_ERROR(add("attn_output.weight", width_elements_, q_blocks, Filler::kZero));
    WITHY_RETURN_IF_ERROR(add("ffn_gate.weight", neurons, width_, Filler::kRandom));
    WITHY_RETURN_IF_ERROR(add("ffn_up.weight", neurons, width_, Filler::kRandom));
    WITHY_RETURN_IF_ERROR(add("ffn_down.weight", width_elements_, neuron_blocks, Filler::kZero));
    const Map head = Identity(s_.head_dim);
    for (const auto& [part, map] : {std::pair<const char*, const Map*>{"attn_q.bias", &q},
                                    {"attn_k.bias", &kv},
                                    {"attn_v.bias", &kv},
                                    {"attn_q_norm.weight", &head},
                                    {"attn_k_norm.weight", &head}}) {
      if (source_.FindTensor(from + part) == nullptr) continue;
      WITHY_RETURN_IF_ERROR(Vector(blk + part, from + part, *map, 1.0f, 0.0f));
    }
    return absl::OkStatus();
  }

  // The LoRA of one level, for the layers that it cuts.
  absl::Status AddLora(size_t level) {
    const int32_t percent = levels_.levels[level].percent;
    for (int32_t layer = 0; layer < t().layers && levels_.lora_rank > 0; ++layer) {
      const LayerPlacement& placed = At(layer);
      const LayerExtent& extent = placed.extents[level];
      if (extent == LayerExtent{t().heads, t().d_ff}) continue;
      for (int i = 0; i < engine::kLoraParts; ++i) {
        const auto part = static_cast<LoraPart>(i);
        const engine::LoraShape size = engine::LoraShapeOf(part, t(), extent, levels_.lora_rank);
        if (size.empty()) continue;
        const bool adds = part == LoraPart::kAttentionOut || part == LoraPart::kDown;
        const bool reads = part == LoraPart::kAttentionOutIn || part == LoraPart::kDownIn;
        const Filler filler = adds || reads ? Filler::kZero : Filler::kRandom;
        const Filler missing_rows = adds ? Filler::kZero : Filler::kRandom;
        // The small model may drop a part that the large one fills to reach the level's share.
        std::string from = engine::LoraName(percent, placed.source, part);
        const bool there = source_.FindTensor(from) != nullptr;
        if (!there) from = SomeLora(from);
        const Map rows =
            placed.real && there ? Identity(size.rows) : Map(static_cast<size_t>(size.rows), -1);
        WITHY_RETURN_IF_ERROR(Matrix(engine::LoraName(percent, layer, part), from, rows,
                                     LoraBlocks(part, placed, extent, size), missing_rows, filler));
      }
    }
    return absl::OkStatus();
  }

  // A tensor of the LoRA's type.
  std::string SomeLora(const std::string& otherwise) const {
    const auto found =
        std::find_if(source_.tensors().begin(), source_.tensors().end(),
                     [](const TensorInfo& t) { return t.name.starts_with("withy.lora."); });
    return found == source_.tensors().end() ? otherwise : found->name;
  }

  Map LoraBlocks(LoraPart part, const LayerPlacement& placed, const LayerExtent& extent,
                 const engine::LoraShape& size) const {
    switch (part) {
      case LoraPart::kAttentionOutIn:
      case LoraPart::kQ:
        return Heads(PackedOrder(placed, extent.heads / t().kv_heads), s_.head_dim / kBlock);
      case LoraPart::kDownIn:
      case LoraPart::kGate:
      case LoraPart::kUp:
        return Expand(placed.neuron_blocks, size.cols / kBlock, 1);
      case LoraPart::kK:
      case LoraPart::kV:
        return Expand(placement_.groups, t().kv_heads, s_.head_dim / kBlock);
      default:
        return width_;
    }
  }

  // Source index of each query head, group by group as in files, with `ranks` heads per group.
  Map FileOrder(const LayerPlacement& placed, int32_t ranks) const {
    Map heads(static_cast<size_t>(t().kv_heads * ranks), -1);
    for (size_t group = 0; group < placement_.groups.size(); ++group) {
      for (size_t rank = 0; rank < placed.ranks.size(); ++rank) {
        if (placed.ranks[rank] >= ranks) continue;
        heads[static_cast<size_t>(placement_.groups[group] * ranks + placed.ranks[rank])] =
            static_cast<int32_t>(group * placed.ranks.size() + rank);
      }
    }
    return heads;
  }

  // The same in the order of a level's LoRA: rank by rank if groups have three or more heads, in
  // both models.
  Map PackedOrder(const LayerPlacement& placed, int32_t ranks) const {
    const Map file = FileOrder(placed, ranks);
    Map packed = file;
    if (t().query_heads_per_group() >= 3) {
      for (int32_t group = 0; group < t().kv_heads; ++group) {
        for (int32_t rank = 0; rank < ranks; ++rank) {
          packed[static_cast<size_t>(rank * t().kv_heads + group)] =
              file[static_cast<size_t>(group * ranks + rank)];
        }
      }
    }
    if (s_.query_heads_per_group() < 3) return packed;
    for (int32_t& head : packed) {
      if (head < 0) continue;
      const int32_t group = head / s_.query_heads_per_group();
      head = head % s_.query_heads_per_group() * s_.kv_heads + group;
    }
    return packed;
  }

  // Expands `heads` to units of `width`.
  static Map Heads(const Map& heads, int32_t width) {
    Map map;
    for (const int32_t head : heads) {
      for (int32_t i = 0; i < width; ++i) map.push_back(head < 0 ? -1 : head * width + i);
    }
    return map;
  }

  absl::Status Matrix(const std::string& name, const std::string& source, Map rows, Map blocks,
                      Filler missing_rows, Filler missing_blocks) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* info, source_.GetTensor(source));
    const std::vector<int64_t> dims = {static_cast<int64_t>(blocks.size()) * kBlock,
                                       static_cast<int64_t>(rows.size())};
    WITHY_ASSIGN_OR_RETURN(
        engine::TensorSource rows_of,
        scatterer_.Scatter(*info, name,
                           {std::move(rows), std::move(blocks), missing_rows, missing_blocks}));
    writer_.AddTensor(name, info->type, dims, std::move(rows_of));
    return absl::OkStatus();
  }

  absl::Status Norm(const std::string& name, const std::string& source) {
    const double ratio = static_cast<double>(s_.d_model) / t().d_model;
    return Vector(name, source, width_elements_, static_cast<float>(std::sqrt(ratio)), 1.0f);
  }

  // Values at their positions times `scale`, `missing` elsewhere.
  absl::Status Vector(const std::string& name, const std::string& source, const Map& map,
                      float scale, float missing) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* info, source_.GetTensor(source));
    std::vector<float> values(static_cast<size_t>(info->elements()));
    WITHY_RETURN_IF_ERROR(engine::Dequantize(info->type, source_.Data(*info), values));
    std::vector<float> placed;
    for (const int32_t from : map) {
      placed.push_back(from < 0 ? missing : scale * values[static_cast<size_t>(from)]);
    }
    writer_.AddTensor(name, GgmlType::kF32, {static_cast<int64_t>(placed.size())},
                      [placed](const engine::TensorSink& sink) {
                        return sink({reinterpret_cast<const uint8_t*>(placed.data()),
                                     placed.size() * sizeof(float)});
                      });
    return absl::OkStatus();
  }

  const engine::GgufFile& source_;
  engine::ModelShape s_;
  engine::LevelTable levels_;
  Placement placement_;
  Map width_;           // blocks of the residual stream
  Map width_elements_;  // its dimensions
  Scatterer scatterer_;
  engine::GgufWriter writer_;
};

}  // namespace

std::vector<std::string> TargetShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& named : kShapes) names.emplace_back(named.name);
  return names;
}

absl::StatusOr<TargetShape> FindTargetShape(std::string_view name) {
  for (const NamedShape& named : kShapes) {
    if (named.name == name) return named.shape;
  }
  return absl::NotFoundError(absl::StrCat("no shape is called \"", ToAbsl(name), "\"; there are ",
                                          absl::StrJoin(TargetShapeNames(), ", ")));
}

absl::Status Inflate(const engine::GgufFile& source, const TargetShape& target,
                     std::string_view name, uint64_t seed, const std::string& path,
                     const std::function<void(uint64_t, uint64_t)>& progress) {
  return Inflater(source, seed).Run(target, name, path, progress);
}

}  // namespace withy::inflate
