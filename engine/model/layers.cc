#include "engine/model/layers.h"

#include <array>
#include <filesystem>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/kv/block.h"

namespace withy::engine {
namespace {

LayerExtent FullExtent(const ModelShape& shape) { return {shape.heads, shape.d_ff}; }

class Collector {
 public:
  explicit Collector(const PackedFile& file) : file_(file) {}

  absl::StatusOr<ModelWeights> Collect() {
    WITHY_ASSIGN_OR_RETURN(weights_.shape, ReadShape(file_.metadata()));
    ModelShape& s = weights_.shape;
    const float* frequencies = nullptr;
    WITHY_RETURN_IF_ERROR(Vector("rope_frequencies", s.head_dim / 2, &frequencies));
    s.rope_frequencies.assign(frequencies, frequencies + s.head_dim / 2);
    WITHY_RETURN_IF_ERROR(Matrix("token_embd", s.vocab_size, s.d_model, &weights_.embedding));
    weights_.head = weights_.embedding;
    if (file_.Find("output") != nullptr) {
      WITHY_RETURN_IF_ERROR(Matrix("output", s.vocab_size, s.d_model, &weights_.head));
    }
    WITHY_RETURN_IF_ERROR(Vector("output_norm", s.d_model, &weights_.output_norm));
    for (int32_t layer = 0; layer < s.layers; ++layer) WITHY_RETURN_IF_ERROR(Layer(layer));
    WITHY_RETURN_IF_ERROR(Levels());
    return std::move(weights_);
  }

 private:
  absl::Status Layer(int32_t index) {
    const ModelShape& s = weights_.shape;
    LayerWeights& l = weights_.layers.emplace_back();
    const auto name = [&](std::string_view part) {
      return absl::StrCat("blk.", index, ".", ToAbsl(part));
    };
    WITHY_RETURN_IF_ERROR(Vector(name("attn_norm"), s.d_model, &l.attn_norm));
    WITHY_RETURN_IF_ERROR(Vector(name("ffn_norm"), s.d_model, &l.ffn_norm));
    if (s.qk_norm) {
      WITHY_RETURN_IF_ERROR(Vector(name("attn_q_norm"), s.head_dim, &l.q_norm));
      WITHY_RETURN_IF_ERROR(Vector(name("attn_k_norm"), s.head_dim, &l.k_norm));
    }
    WITHY_RETURN_IF_ERROR(Bias(name("attn_q.bias"), s.q_rows(), &l.q_bias));
    WITHY_RETURN_IF_ERROR(Bias(name("attn_k.bias"), s.kv_rows(), &l.k_bias));
    WITHY_RETURN_IF_ERROR(Bias(name("attn_v.bias"), s.kv_rows(), &l.v_bias));
    WITHY_RETURN_IF_ERROR(Matrix(name("attn_q"), s.q_rows(), s.d_model, &l.q));
    WITHY_RETURN_IF_ERROR(Matrix(name("attn_k"), s.kv_rows(), s.d_model, &l.k));
    WITHY_RETURN_IF_ERROR(Matrix(name("attn_v"), s.kv_rows(), s.d_model, &l.v));
    WITHY_RETURN_IF_ERROR(Matrix(name("attn_output"), s.d_model, s.q_rows(), &l.output));
    WITHY_RETURN_IF_ERROR(Matrix(name("ffn_gate"), s.d_ff, s.d_model, &l.gate));
    WITHY_RETURN_IF_ERROR(Matrix(name("ffn_up"), s.d_ff, s.d_model, &l.up));
    return Matrix(name("ffn_down"), s.d_model, s.d_ff, &l.down);
  }

  absl::Status Levels() {
    const ModelShape& s = weights_.shape;
    WITHY_ASSIGN_OR_RETURN(LevelTable table, ReadLevels(file_.metadata(), s));
    weights_.levels = std::move(table.levels);
    weights_.lora_rank = table.lora_rank;
    if (table.lora_rank == 0) return absl::OkStatus();
    for (const LevelSpec& level : weights_.levels) {
      std::vector<LoraWeights>& layers = weights_.lora.emplace_back(static_cast<size_t>(s.layers));
      for (int32_t layer = 0; layer < s.layers; ++layer) {
        const LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
        if (extent == FullExtent(s)) continue;
        WITHY_RETURN_IF_ERROR(
            Lora(level.percent, layer, extent, &layers[static_cast<size_t>(layer)]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Lora(int32_t percent, int32_t layer, const LayerExtent& extent, LoraWeights* out) {
    out->attention = extent.heads > 0;
    out->mlp = extent.neurons > 0;
    PackedMatrix* const in[] = {&out->attention_in, &out->attention_out_in, &out->ffn_in,
                                &out->down_in};
    LowRankOutputs* const outputs[] = {&out->q,    &out->k,  &out->v,   &out->attention_out,
                                       &out->gate, &out->up, &out->down};
    for (int i = 0; i < kLoraParts; ++i) {
      const auto part = static_cast<LoraPart>(i);
      const LoraShape shape = LoraShapeOf(part, weights_.shape, extent, weights_.lora_rank);
      if (shape.empty()) continue;
      const std::string name = LoraName(percent, layer, part);
      if (IsLoraIn(part)) {
        WITHY_RETURN_IF_ERROR(Matrix(name, shape.rows, shape.cols, in[i]));
      } else {
        WITHY_RETURN_IF_ERROR(LowRank(name, shape, outputs[i - static_cast<int>(LoraPart::kQ)]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status LowRank(const std::string& name, const LoraShape& shape, LowRankOutputs* out) {
    const PackedTensor* tensor = file_.Find(name);
    if (tensor == nullptr || tensor->kind != PackedKind::kLowRank ||
        tensor->low_rank.rank != shape.rows || tensor->low_rank.outputs != shape.cols) {
      return Wrong(name);
    }
    *out = tensor->low_rank;
    return absl::OkStatus();
  }

  absl::Status Wrong(std::string_view name) const {
    return absl::DataLossError(absl::StrCat(file_.path(), ": tensor ", ToAbsl(name),
                                            " is missing or has another shape than the metadata "
                                            "says; delete the file, and it is made again"));
  }

  absl::Status Matrix(const std::string& name, int32_t n_out, int32_t n_in, PackedMatrix* out) {
    const PackedTensor* tensor = file_.Find(name);
    if (tensor == nullptr || tensor->kind != PackedKind::kMatrix || tensor->matrix.n_out != n_out ||
        tensor->matrix.n_in != n_in) {
      return Wrong(name);
    }
    *out = tensor->matrix;
    return absl::OkStatus();
  }

  absl::Status Vector(const std::string& name, int32_t n, const float** out) {
    const PackedTensor* tensor = file_.Find(name);
    if (tensor == nullptr || tensor->kind != PackedKind::kVector ||
        tensor->values.size() != static_cast<size_t>(n)) {
      return Wrong(name);
    }
    *out = tensor->values.data();
    return absl::OkStatus();
  }

  absl::Status Bias(const std::string& name, int32_t n, const float** out) {
    if (!weights_.shape.needs_qkv_bias && file_.Find(name) == nullptr) return absl::OkStatus();
    return Vector(name, n, out);
  }

  const PackedFile& file_;
  ModelWeights weights_;
};

int64_t LayerBytes(const LayerWeights& l, const ModelShape& s, const LayerExtent& extent) {
  const int q_rows = extent.heads * s.head_dim;
  const int kv_rows = s.kv_heads_of(extent.heads) * s.head_dim;
  const size_t bytes = PrefixBytes(l.k, kv_rows, l.k.n_in) + PrefixBytes(l.v, kv_rows, l.v.n_in) +
                       PrefixBytes(l.q, q_rows, l.q.n_in) +
                       PrefixBytes(l.output, l.output.n_out, q_rows) +
                       PrefixBytes(l.gate, extent.neurons, l.gate.n_in) +
                       PrefixBytes(l.up, extent.neurons, l.up.n_in) +
                       PrefixBytes(l.down, l.down.n_out, extent.neurons);
  return static_cast<int64_t>(bytes);
}

int64_t LoraBytes(const LoraWeights& l) {
  size_t bytes = 0;
  for (const PackedMatrix* in : {&l.attention_in, &l.attention_out_in, &l.ffn_in, &l.down_in}) {
    bytes += PrefixBytes(*in, in->n_out, in->n_in);
  }
  for (const LowRankOutputs* out : {&l.q, &l.k, &l.v, &l.attention_out, &l.gate, &l.up, &l.down}) {
    bytes += LowRankBytes(out->rank, out->outputs);
  }
  return static_cast<int64_t>(bytes);
}

int64_t LoraFlops(const LoraWeights& l) {
  int64_t flops = 0;
  for (const PackedMatrix* in : {&l.attention_in, &l.attention_out_in, &l.ffn_in, &l.down_in}) {
    flops += 2 * int64_t{in->n_out} * in->n_in;
  }
  for (const LowRankOutputs* out : {&l.q, &l.k, &l.v, &l.attention_out, &l.gate, &l.up, &l.down}) {
    flops += 2 * int64_t{out->rank} * out->outputs;
  }
  return flops;
}

int64_t LayerFlops(const ModelShape& s, const LayerExtent& extent) {
  const int64_t heads = extent.heads + s.kv_heads_of(extent.heads);
  const int64_t rows = 2 * heads * s.head_dim + 3 * int64_t{extent.neurons};
  return 2 * rows * s.d_model;
}

// `lora`: of the level, by layer; may be null.
LevelInfo DescribeLevel(const ModelWeights& weights, int32_t percent, const LevelSpec* spec,
                        const std::vector<LoraWeights>* lora) {
  const ModelShape& s = weights.shape;
  LevelInfo info;
  info.percent = percent;
  info.weight_bytes = static_cast<int64_t>(PackedBytes(weights.head));
  info.flops_per_token = 2 * int64_t{s.vocab_size} * s.d_model;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerExtent extent = spec != nullptr ? spec->layers[i] : FullExtent(s);
    info.weight_bytes += LayerBytes(weights.layers[i], s, extent);
    info.flops_per_token += LayerFlops(s, extent);
    if (lora != nullptr) {
      info.weight_bytes += LoraBytes((*lora)[i]);
      info.flops_per_token += LoraFlops((*lora)[i]);
    }
  }
  return info;
}

// Type name of the most weight bytes, as GGUF names it.
std::string_view MostUsedType(const PackedFile& file) {
  static constexpr std::array<std::string_view, 6> kNames = {"F32",  "F16",  "BF16",
                                                             "Q8_0", "Q4_0", "Q4_1"};
  std::array<uint64_t, 6> bytes{};
  for (const PackedTensor& tensor : file.tensors()) {
    if (tensor.kind == PackedKind::kMatrix) {
      bytes[static_cast<size_t>(tensor.matrix.type)] += tensor.bytes;
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < bytes.size(); ++i) {
    if (bytes[i] > bytes[best]) best = i;
  }
  return kNames[best];
}

absl::Status CheckExtent(const ModelWeights& weights, const LevelSpec& level, size_t layer,
                         const LayerExtent& limit) {
  const ModelShape& s = weights.shape;
  const LayerExtent& e = level.layers[layer];
  const auto wrong = [&](std::string_view what, int32_t value, std::string_view wanted) {
    return absl::InvalidArgumentError(absl::StrCat("level ", level.percent, " %, layer ", layer,
                                                   ": ", ToAbsl(what), " ", value, " must be ",
                                                   ToAbsl(wanted)));
  };
  const int32_t unit = s.query_heads_per_unit();
  if (e.heads < 0 || e.heads > limit.heads || e.heads % unit != 0) {
    return wrong("heads", e.heads, absl::StrCat("a multiple of ", unit, " up to ", limit.heads));
  }
  if (e.heads != s.heads && e.heads * s.head_dim % weights.layers[layer].output.panel_inputs != 0) {
    return wrong("heads", e.heads, "whole panels of attn_output");
  }
  const int32_t panel = weights.layers[layer].down.panel_inputs;
  if (e.neurons < 0 || e.neurons > limit.neurons ||
      (e.neurons != s.d_ff && e.neurons % panel != 0)) {
    return wrong("neurons", e.neurons,
                 absl::StrCat("a multiple of ", panel, " up to ", limit.neurons));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelWeights> CollectWeights(const PackedFile& file) {
  return Collector(file).Collect();
}

absl::Status CheckLevels(const ModelWeights& weights, std::span<const LevelSpec> levels) {
  for (size_t i = 0; i < levels.size(); ++i) {
    if (levels[i].layers.size() != weights.layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("level ", levels[i].percent, " % has ",
                                                     levels[i].layers.size(), " layers, the model ",
                                                     weights.layers.size()));
    }
    for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
      const LayerExtent limit = i + 1 < levels.size() && layer < levels[i + 1].layers.size()
                                    ? levels[i + 1].layers[layer]
                                    : FullExtent(weights.shape);
      WITHY_RETURN_IF_ERROR(CheckExtent(weights, levels[i], layer, limit));
    }
  }
  return absl::OkStatus();
}

ModelInfo DescribeModel(const PackedFile& file, const ModelWeights& weights) {
  const ModelShape& s = weights.shape;
  ModelInfo info;
  info.name = !s.name.empty()
                  ? s.name
                  : ValidUtf8(std::filesystem::path(file.path()).stem().string(), kMaxShownBytes);
  info.architecture = s.architecture;
  info.id = file.model_id();
  info.quantisation = MostUsedType(file);
  info.layers = s.layers;
  info.d_model = s.d_model;
  info.heads = s.heads;
  info.kv_heads = s.kv_heads;
  info.head_dim = s.head_dim;
  info.d_ff = s.d_ff;
  info.vocab_size = s.vocab_size;
  info.context_length = s.context_length;
  for (const PackedTensor& tensor : file.tensors()) {
    info.weight_bytes += static_cast<int64_t>(tensor.bytes);
    // Neither the LoRA nor RoPE's frequencies, which are not learnt, are parameters of the model.
    if (tensor.name.starts_with(kGgufOwnPrefix) || tensor.name == "rope_frequencies") continue;
    info.parameters += tensor.kind == PackedKind::kMatrix
                           ? int64_t{tensor.matrix.n_out} * tensor.matrix.n_in
                           : static_cast<int64_t>(tensor.values.size());
  }
  const KvGeometry geometry{.layers = s.layers, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  info.kv = {.chunk_tokens = kChunkTokens,
             .layers = s.layers,
             .kv_heads = s.kv_heads,
             .head_dim = s.head_dim,
             .block_bytes = geometry.BlockBytes()};
  for (size_t i = 0; i < weights.levels.size(); ++i) {
    const LevelSpec& level = weights.levels[i];
    info.levels.push_back(DescribeLevel(weights, level.percent, &level,
                                        weights.lora.empty() ? nullptr : &weights.lora[i]));
  }
  info.levels.push_back(DescribeLevel(weights, 100, nullptr, nullptr));
  return info;
}

}  // namespace withy::engine
