#include "offline/tlm/network.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "offline/tlm/stages.h"

namespace withy::tlm {
namespace {

using torch::Tensor;

constexpr double kHidden = -1e9;  // added to the scores of padding keys

}  // namespace

PaddedWindows Pad(std::span<const std::vector<int32_t>> windows) {
  size_t longest = 0;
  for (const std::vector<int32_t>& window : windows) longest = std::max(longest, window.size());
  const auto rows = static_cast<int64_t>(windows.size());
  const auto length = static_cast<int64_t>(longest);
  PaddedWindows padded{torch::zeros({rows, length}, torch::kInt64),
                       torch::zeros({rows, length}, torch::kFloat32)};
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<int32_t>& window = windows[static_cast<size_t>(r)];
    std::copy(window.begin(), window.end(), padded.ids.data_ptr<int64_t>() + r * length);
    std::fill_n(padded.mask.data_ptr<float>() + r * length, window.size(), 1.0f);
  }
  return padded;
}

Network::Network(const engine::TlmCheckpoint& checkpoint) : shape_(checkpoint.shape) {
  for (const engine::TlmTensor& tensor : checkpoint.tensors) {
    std::vector<int64_t> sizes(tensor.spec.dims.rbegin(), tensor.spec.dims.rend());
    weights_[tensor.spec.name] =
        torch::from_blob(const_cast<float*>(tensor.values.data()), sizes, torch::kFloat32).clone();
  }
}

void Network::Store(engine::TlmCheckpoint* checkpoint) const {
  for (engine::TlmTensor& tensor : checkpoint->tensors) {
    const Tensor values = W(tensor.spec.name).detach().contiguous();
    const float* data = values.data_ptr<float>();
    tensor.values.assign(data, data + values.numel());
  }
}

Tensor Network::Dense(const Tensor& x, const std::string& name) const {
  return torch::linear(x, W(name + ".weight"), W(name + ".bias"));
}

Tensor Network::Norm(const Tensor& x, const std::string& name, double epsilon) const {
  const Tensor& weight = W(name + ".weight");
  const Tensor& bias = W(name + ".bias");
  if (shape_.encoder.norm == engine::EncoderNorm::kNoNorm) return x * weight + bias;
  return torch::layer_norm(x, {weight.numel()}, weight, bias, epsilon);
}

Tensor Network::Embed(const PaddedWindows& windows) const {
  const engine::EncoderShape& e = shape_.encoder;
  const int64_t length = windows.ids.size(1);
  Tensor x = torch::embedding(W("token_embd.weight"), windows.ids) * windows.mask.unsqueeze(2);
  if (e.trigram) {
    const Tensor none = torch::zeros_like(x.narrow(1, 0, 1));
    const Tensor next = torch::cat({x.narrow(1, 1, length - 1), none}, 1);
    const Tensor previous = torch::cat({none, x.narrow(1, 0, length - 1)}, 1);
    x = torch::cat({next, x, previous}, 2);
  }
  if (e.has_transform()) x = Dense(x, "embd_transform");
  x = x + W("position_embd.weight").narrow(0, 0, length) + W("token_types.weight").narrow(0, 0, 1);
  return Norm(x, "embd_norm", engine::kDefaultNormEpsilon);
}

Tensor Network::Layer(const Tensor& x, const Tensor& hidden_keys, const std::string& name) const {
  const engine::EncoderShape& e = shape_.encoder;
  const double eps = e.epsilon;
  const auto squeeze = [&](const std::string& part) {
    return Norm(Dense(x, name + part), name + part + "_norm", eps);
  };
  const Tensor input = e.use_bottleneck ? squeeze("bottleneck_in") : x;
  Tensor query_input = x;
  Tensor value_input = x;
  if (e.use_bottleneck && e.bottleneck_attention) {
    query_input = value_input = input;
  } else if (e.use_bottleneck && e.shared_qk) {
    query_input = squeeze("bottleneck_qk");
  }
  const auto heads = [&](const Tensor& from, const char* part) {
    return Dense(from, name + part)
        .view({x.size(0), x.size(1), e.heads, e.head_dim()})
        .transpose(1, 2);
  };
  const Tensor q = heads(query_input, "attn_q");
  const Tensor k = heads(query_input, "attn_k");
  const Tensor v = heads(value_input, "attn_v");
  const Tensor scores =
      torch::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(e.head_dim()));
  const Tensor mixed = torch::matmul(torch::softmax(scores + hidden_keys, -1), v)
                           .transpose(1, 2)
                           .reshape({x.size(0), x.size(1), e.bottleneck});
  Tensor z = Norm(Dense(mixed, name + "attn_output") + input, name + "attn_output_norm", eps);
  for (int32_t i = 0; i < e.ffn_count; ++i) {
    const std::string ffn = absl::StrCat(name, "ffn.", i);
    const double ffn_eps = i + 1 == e.ffn_count ? double{engine::kDefaultNormEpsilon} : eps;
    z = Norm(Dense(torch::relu(Dense(z, ffn + ".up")), ffn + ".down") + z, ffn + ".norm", ffn_eps);
  }
  if (!e.use_bottleneck) return z;
  return Norm(Dense(z, name + "bottleneck_out") + x, name + "bottleneck_out_norm", eps);
}

Tensor Network::Tower(Tensor x, const PaddedWindows& windows, const std::string& tower,
                      int32_t layers) const {
  const Tensor hidden_keys = ((1 - windows.mask) * kHidden).unsqueeze(1).unsqueeze(1);
  for (int32_t i = 0; i < layers; ++i) {
    x = Layer(x, hidden_keys, absl::StrCat(tower, ".", i, "."));
  }
  return x;
}

NetworkOutput Network::Score(const PaddedWindows& windows) const {
  Tensor x = Tower(Embed(windows), windows, "shared", shape_.shared_layers);
  x = Tower(x, windows, "score", shape_.score_layers);
  return {.keep = Dense(x, "score.keep").squeeze(2), .prompt = {}, .model = {}};
}

NetworkOutput Network::Decide(const PaddedWindows& windows) const {
  Tensor x = Tower(Embed(windows), windows, "shared", shape_.shared_layers);
  x = Tower(x, windows, "decision", shape_.decision_layers).select(1, 0);
  if (shape_.pooler) x = torch::tanh(Dense(x, "decision.pooler"));
  return {.keep = {}, .prompt = Dense(x, "decision.prompt"), .model = Dense(x, "decision.model")};
}

engine::EncoderOutput RunNetwork(const engine::TlmCheckpoint& checkpoint,
                                 std::span<const std::vector<int32_t>> windows) {
  torch::NoGradGuard no_grad;
  const Network network(checkpoint);
  const PaddedWindows padded = Pad(windows);
  const Tensor keep = network.Score(padded).keep;
  const NetworkOutput decided = network.Decide(padded);
  engine::EncoderOutput out;
  for (size_t w = 0; w < windows.size(); ++w) {
    const Tensor row = keep[static_cast<int64_t>(w)].contiguous();
    out.keep.insert(out.keep.end(), row.data_ptr<float>(),
                    row.data_ptr<float>() + windows[w].size());
  }
  const auto copy = [](const Tensor& from, std::vector<float>* to) {
    const Tensor flat = from.contiguous();
    to->assign(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  };
  copy(decided.prompt, &out.prompt);
  copy(decided.model, &out.model);
  return out;
}

}  // namespace withy::tlm
