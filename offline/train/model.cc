#include "offline/train/model.h"

#include <cmath>
#include <string>

#include "offline/train/ops.h"

namespace withy::train {

using torch::Tensor;

Model::Model(const Shape& shape, uint64_t seed, torch::Device device)
    : shape_(shape), device_(device) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(seed);
  const auto add = [&](const std::string& name, const Tensor& value) {
    parameters_.push_back({name, value.to(device_).set_requires_grad(true)});
  };
  const auto matrix = [&](int64_t outputs, int64_t inputs, double deviation) {
    return torch::randn({outputs, inputs}) * deviation;
  };
  const double in = 1.0 / std::sqrt(static_cast<double>(shape.d_model));
  const double residual = 0.02 * in;  // matrices that write to the residual stream start near zero
  const int64_t q_width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  add("token_embd.weight", matrix(shape.vocab_size, shape.d_model, 1.0));
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    add(prefix + "attn_norm.weight", torch::ones({shape.d_model}));
    add(prefix + "attn_q.weight", matrix(q_width, shape.d_model, in));
    add(prefix + "attn_k.weight", matrix(kv_width, shape.d_model, in));
    add(prefix + "attn_v.weight", matrix(kv_width, shape.d_model, in));
    add(prefix + "attn_output.weight", matrix(shape.d_model, q_width, residual));
    add(prefix + "ffn_norm.weight", torch::ones({shape.d_model}));
    add(prefix + "ffn_gate.weight", matrix(shape.ffn, shape.d_model, in));
    add(prefix + "ffn_up.weight", matrix(shape.ffn, shape.d_model, in));
    add(prefix + "ffn_down.weight", matrix(shape.d_model, shape.ffn, residual));
  }
  add("output_norm.weight", torch::ones({shape.d_model}));
  add("output.weight", matrix(shape.vocab_size, shape.d_model, 0.005));

  const Tensor pair =
      torch::arange(0, shape.head_dim, 2, torch::kFloat64) / static_cast<double>(shape.head_dim);
  const Tensor frequency = torch::exp(pair * -std::log(shape.rope_theta));
  const Tensor angle =
      torch::outer(torch::arange(shape.context_length, torch::kFloat64), frequency);
  cos_ = angle.cos().to(torch::kFloat32).to(device);
  sin_ = angle.sin().to(torch::kFloat32).to(device);
  Bind();
}

Model Model::Replica() const {
  Model replica(shape_, device_);
  replica.products_ = products_;
  for (const Parameter& parameter : parameters_) {
    replica.parameters_.push_back(
        {parameter.name, parameter.value.detach().set_requires_grad(true)});
  }
  replica.cos_ = cos_;
  replica.sin_ = sin_;
  replica.Bind();
  return replica;
}

// Assigns the parameters, in the order they were added, to their places in the network.
void Model::Bind() {
  auto next = parameters_.begin();
  embedding_ = (next++)->value;
  for (int64_t i = 0; i < shape_.layers; ++i) {
    Layer layer;
    for (Tensor* place : {&layer.attention_norm, &layer.q, &layer.k, &layer.v, &layer.o,
                          &layer.ffn_norm, &layer.gate, &layer.up, &layer.down}) {
      *place = (next++)->value;
    }
    layers_.push_back(layer);
  }
  output_norm_ = (next++)->value;
  output_ = next->value;
}

Tensor Model::Attention(const Layer& layer, const Tensor& x, int64_t batch, int64_t length) const {
  const int64_t heads = shape_.heads + 2 * shape_.kv_heads;
  const Tensor qkv = Linear(x, torch::cat({layer.q, layer.k, layer.v}), products_)
                         .view({batch, length, heads, shape_.head_dim});
  const std::vector<Tensor> qk_v =
      qkv.split_with_sizes({shape_.heads + shape_.kv_heads, shape_.kv_heads}, 2);
  const Tensor turned = Rope(qk_v[0], cos_.narrow(0, 0, length), sin_.narrow(0, 0, length));
  const std::vector<Tensor> q_k = turned.split_with_sizes({shape_.heads, shape_.kv_heads}, 2);
  const Tensor mixed = CausalAttention(q_k[0], q_k[1], qk_v[1]);
  return Linear(mixed.reshape({batch * length, shape_.heads * shape_.head_dim}), layer.o,
                products_);
}

Tensor Model::Hidden(const Tensor& tokens) const {
  const int64_t batch = tokens.size(0);
  const int64_t length = tokens.size(1);
  Tensor x = torch::embedding(embedding_, tokens).view({batch * length, shape_.d_model});
  for (const Layer& layer : layers_) {
    x = x + Attention(layer, RmsNorm(x, layer.attention_norm, shape_.norm_eps), batch, length);
    const Tensor gate_up = Linear(RmsNorm(x, layer.ffn_norm, shape_.norm_eps),
                                  torch::cat({layer.gate, layer.up}), products_);
    x = x + Linear(SwiGlu(gate_up), layer.down, products_);
  }
  return RmsNorm(x, output_norm_, shape_.norm_eps);
}

Tensor Model::Logits(const Tensor& hidden) const { return torch::linear(hidden, output_); }

}  // namespace withy::train
