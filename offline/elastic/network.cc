#include "offline/elastic/network.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/gguf/quants.h"
#include "offline/train/ops.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

constexpr int64_t kMaxPositions = 8192;  // longer windows are not used for importance

// Reads tensors by name as f32.
class Loader {
 public:
  Loader(const engine::GgufFile& file, torch::Device device) : file_(file), device_(device) {}

  absl::Status Matrix(const std::string& name, int64_t rows, int64_t cols, Tensor* out) const {
    return Read(name, rows, cols, true, out);
  }
  absl::Status Vector(const std::string& name, int64_t size, Tensor* out) const {
    return Read(name, 1, size, false, out);
  }
  absl::Status VectorIfThere(const std::string& name, int64_t size, Tensor* out) const {
    if (file_.FindTensor(name) == nullptr) return absl::OkStatus();
    return Vector(name, size, out);
  }

 private:
  absl::Status Read(const std::string& name, int64_t rows, int64_t cols, bool matrix,
                    Tensor* out) const {
    WITHY_ASSIGN_OR_RETURN(const engine::TensorInfo* info, file_.GetTensor(name));
    if (info->rows() != rows || info->cols() != cols) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": tensor ", name, " is [", info->rows(), ", ", info->cols(),
                       "]; the metadata asks for [", rows, ", ", cols, "]"));
    }
    Tensor values = torch::empty({rows * cols}, torch::kFloat32);
    WITHY_RETURN_IF_ERROR(engine::Dequantize(
        info->type, file_.Data(*info),
        std::span<float>(values.data_ptr<float>(), static_cast<size_t>(rows * cols))));
    *out = (matrix ? values.view({rows, cols}) : values).to(device_);
    return absl::OkStatus();
  }

  const engine::GgufFile& file_;
  torch::Device device_;
};

absl::Status LoadLayer(const Loader& loader, const engine::ModelShape& s, int32_t index,
                       Layer* layer) {
  const auto name = [&](const char* part) { return absl::StrCat("blk.", index, ".", part); };
  WITHY_RETURN_IF_ERROR(loader.Vector(name("attn_norm.weight"), s.d_model, &layer->attention_norm));
  WITHY_RETURN_IF_ERROR(loader.Vector(name("ffn_norm.weight"), s.d_model, &layer->ffn_norm));
  WITHY_RETURN_IF_ERROR(loader.Matrix(name("attn_q.weight"), s.q_rows(), s.d_model, &layer->q));
  WITHY_RETURN_IF_ERROR(loader.Matrix(name("attn_k.weight"), s.kv_rows(), s.d_model, &layer->k));
  WITHY_RETURN_IF_ERROR(loader.Matrix(name("attn_v.weight"), s.kv_rows(), s.d_model, &layer->v));
  WITHY_RETURN_IF_ERROR(
      loader.Matrix(name("attn_output.weight"), s.d_model, s.q_rows(), &layer->o));
  WITHY_RETURN_IF_ERROR(loader.Matrix(name("ffn_gate.weight"), s.d_ff, s.d_model, &layer->gate));
  WITHY_RETURN_IF_ERROR(loader.Matrix(name("ffn_up.weight"), s.d_ff, s.d_model, &layer->up));
  WITHY_RETURN_IF_ERROR(loader.Matrix(name("ffn_down.weight"), s.d_model, s.d_ff, &layer->down));
  WITHY_RETURN_IF_ERROR(loader.VectorIfThere(name("attn_q.bias"), s.q_rows(), &layer->q_bias));
  WITHY_RETURN_IF_ERROR(loader.VectorIfThere(name("attn_k.bias"), s.kv_rows(), &layer->k_bias));
  WITHY_RETURN_IF_ERROR(loader.VectorIfThere(name("attn_v.bias"), s.kv_rows(), &layer->v_bias));
  if (s.qk_norm == engine::QkNorm::kNone) return absl::OkStatus();
  WITHY_RETURN_IF_ERROR(loader.Vector(name("attn_q_norm.weight"), s.head_dim, &layer->q_norm));
  return loader.Vector(name("attn_k_norm.weight"), s.head_dim, &layer->k_norm);
}

Tensor WithLora(const Tensor& y, const Tensor& x, const Lora::Pair* pair) {
  if (pair == nullptr || !pair->a.defined()) return y;
  return y + torch::linear(torch::linear(x, pair->a), pair->b);
}

// RMS norm of each head; heads [batch, length, heads, head_dim].
Tensor NormHeads(const Tensor& heads, const Tensor& weight, double eps) {
  if (!weight.defined()) return heads;
  return train::RmsNorm(heads.reshape({-1, heads.size(-1)}), weight, eps).view(heads.sizes());
}

}  // namespace

Tensor HeadPrefix(const Tensor& weight, int64_t dim, const engine::ModelShape& shape,
                  int64_t heads) {
  const int64_t present = weight.size(dim) / shape.head_dim;
  if (heads == present) return weight;
  if (shape.cuts_kv_heads()) return weight.narrow(dim, 0, heads * shape.head_dim);
  return weight.unflatten(dim, {shape.kv_heads, present / shape.kv_heads, shape.head_dim})
      .narrow(dim + 1, 0, heads / shape.kv_heads)
      .flatten(dim, dim + 2);
}

absl::StatusOr<Network> Network::FromGguf(const engine::GgufFile& file, torch::Device device) {
  torch::NoGradGuard no_grad;
  WITHY_ASSIGN_OR_RETURN(engine::ModelShape shape, engine::ReadShape(file));
  shape.UseWindow(0);
  const std::string beyond = engine::BeyondLlama(shape);
  if (!beyond.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": models with ", beyond,
                     " cannot be trained for levels: take one of llama, qwen2, qwen3"));
  }
  Network network(std::move(shape), device);
  const engine::ModelShape& s = network.shape_;
  const Loader loader(file, device);
  WITHY_RETURN_IF_ERROR(
      loader.Matrix("token_embd.weight", s.vocab_size, s.d_model, &network.embedding_));
  network.output_ = network.embedding_;
  if (file.FindTensor("output.weight") != nullptr) {
    WITHY_RETURN_IF_ERROR(
        loader.Matrix("output.weight", s.vocab_size, s.d_model, &network.output_));
  }
  WITHY_RETURN_IF_ERROR(loader.Vector("output_norm.weight", s.d_model, &network.output_norm_));
  for (int32_t i = 0; i < s.layers; ++i) {
    Layer& layer = network.layers_.emplace_back();
    WITHY_RETURN_IF_ERROR(LoadLayer(loader, s, i, &layer));
    layer.heads_were = torch::arange(s.heads, device);
    layer.neurons_were = torch::arange(s.d_ff, device);
  }
  // A rope_freqs tensor divides the frequencies; ReadShape handles the rest.
  Tensor frequency =
      torch::from_blob(network.shape_.rope_frequencies.data(),
                       {static_cast<int64_t>(s.rope_frequencies.size())}, torch::kFloat32)
          .to(torch::kFloat64);
  const Tensor angle = torch::outer(
      torch::arange(std::min<int64_t>(s.context_length, kMaxPositions), torch::kFloat64),
      frequency);
  const double scale = s.rope_scales[0];
  network.cos_ = (scale * angle.cos()).to(torch::kFloat32).to(device);
  network.sin_ = (scale * angle.sin()).to(torch::kFloat32).to(device);
  return network;
}

engine::LayerExtent Network::ExtentOf(size_t layer, const View& view) const {
  if (view.extents == nullptr) return {shape_.heads, shape_.d_ff};
  return (*view.extents)[layer];
}

// RoPE; heads [batch, length, heads, head_dim].
Tensor Network::Turn(const Tensor& heads, int64_t length) const {
  const Tensor cos = cos_.narrow(0, 0, length);
  const Tensor sin = sin_.narrow(0, 0, length);
  if (shape_.rope_pairing == engine::RopePairing::kAdjacent) return train::Rope(heads, cos, sin);
  const int64_t half = heads.size(-1) / 2;
  const Tensor adjacent = heads.unflatten(-1, {2, half}).transpose(-1, -2).flatten(-2);
  return train::Rope(adjacent, cos, sin).unflatten(-1, {half, 2}).transpose(-1, -2).flatten(-2);
}

Tensor Network::Attention(const Tensor& x, int64_t batch, int64_t length, size_t index,
                          const View& view) const {
  const Layer& layer = layers_[index];
  const Lora* lora = view.lora == nullptr ? nullptr : &(*view.lora)[index];
  const int32_t heads = ExtentOf(index, view).heads;
  const int64_t kv_rows = int64_t{shape_.kv_heads_of(heads)} * shape_.head_dim;
  const auto project = [&](const Tensor& w, const Tensor& bias, const Lora::Pair* pair) {
    const Tensor y = WithLora(train::Linear(x, w, products_), x, pair);
    return (bias.defined() ? y + bias : y).view({batch, length, -1, shape_.head_dim});
  };
  const auto kv_prefix = [&](const Tensor& weight) {
    return weight.defined() ? weight.narrow(0, 0, kv_rows) : weight;
  };
  const Tensor q_bias =
      layer.q_bias.defined() ? HeadPrefix(layer.q_bias, 0, shape_, heads) : layer.q_bias;
  Tensor q = project(HeadPrefix(layer.q, 0, shape_, heads), q_bias, lora ? &lora->q : nullptr);
  Tensor k = project(kv_prefix(layer.k), kv_prefix(layer.k_bias), lora ? &lora->k : nullptr);
  const Tensor v = project(kv_prefix(layer.v), kv_prefix(layer.v_bias), lora ? &lora->v : nullptr);
  q = Turn(NormHeads(q, layer.q_norm, shape_.rms_epsilon), length);
  k = Turn(NormHeads(k, layer.k_norm, shape_.rms_epsilon), length);
  Tensor mixed = train::CausalAttention(q, k, v).reshape({batch * length, -1});
  if (view.gates != nullptr) {
    const Tensor& gate = (*view.gates)[index].heads;
    mixed = (mixed.unflatten(1, {heads, shape_.head_dim}) * gate.unsqueeze(-1)).flatten(1);
  }
  return WithLora(train::Linear(mixed, HeadPrefix(layer.o, 1, shape_, heads), products_), mixed,
                  lora ? &lora->o : nullptr);
}

Tensor Network::Mlp(const Tensor& x, size_t index, const View& view) const {
  const Layer& layer = layers_[index];
  const Lora* lora = view.lora == nullptr ? nullptr : &(*view.lora)[index];
  const int64_t neurons = ExtentOf(index, view).neurons;
  const Tensor gate = WithLora(train::Linear(x, layer.gate.narrow(0, 0, neurons), products_), x,
                               lora ? &lora->gate : nullptr);
  const Tensor up = WithLora(train::Linear(x, layer.up.narrow(0, 0, neurons), products_), x,
                             lora ? &lora->up : nullptr);
  Tensor h = train::SwiGlu(torch::cat({gate, up}, 1));
  if (view.gates != nullptr) h = h * (*view.gates)[index].neurons;
  return WithLora(train::Linear(h, layer.down.narrow(1, 0, neurons), products_), h,
                  lora ? &lora->down : nullptr);
}

Tensor Network::Hidden(const Tensor& tokens, const View& view) const {
  const int64_t batch = tokens.size(0);
  const int64_t length = tokens.size(1);
  const double eps = shape_.rms_epsilon;
  Tensor x = torch::embedding(embedding_, tokens).view({batch * length, shape_.d_model});
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (static_cast<int32_t>(i) == view.without_layer) continue;
    const engine::LayerExtent extent = ExtentOf(i, view);
    if (extent.heads > 0) {
      x = x + Attention(train::RmsNorm(x, layers_[i].attention_norm, eps), batch, length, i, view);
    }
    if (extent.neurons > 0) x = x + Mlp(train::RmsNorm(x, layers_[i].ffn_norm, eps), i, view);
  }
  return train::RmsNorm(x, output_norm_, eps);
}

void Network::RoundWeights() {
  if (products_ != train::Products::kBf16) return;
  rounded_ = output_.to(torch::kBFloat16);
  for (Layer& layer : layers_) {
    for (Tensor* weight :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      *weight = weight->to(torch::kBFloat16);
    }
  }
}

Tensor Network::Logits(const Tensor& hidden) const { return torch::linear(hidden, output_); }

}  // namespace withy::elastic
