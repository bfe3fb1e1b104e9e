#include "elasticizer/elastic/recovery.h"

#include <cmath>

namespace withy::elastic {
namespace {

using torch::Tensor;

Lora::Pair NewPair(int64_t outputs, int64_t inputs, int64_t rank, torch::Device device,
                   torch::Generator& random) {
  const double deviation = 1.0 / std::sqrt(static_cast<double>(inputs));
  return {(torch::randn({rank, inputs}, random) * deviation).to(device),
          torch::zeros({outputs, rank}, device)};
}

Lora NewLora(const engine::ModelShape& s, const engine::LayerExtent& extent, int64_t rank,
             torch::Device device, torch::Generator& random) {
  const int64_t q = int64_t{extent.heads} * s.head_dim;
  const int64_t kv = int64_t{s.kv_heads_of(extent.heads)} * s.head_dim;
  const auto pair = [&](int64_t outputs, int64_t inputs) {
    return NewPair(outputs, inputs, rank, device, random);
  };
  return {.q = pair(q, s.d_model),
          .k = pair(kv, s.d_model),
          .v = pair(kv, s.d_model),
          .o = pair(s.d_model, q),
          .gate = pair(extent.neurons, s.d_model),
          .up = pair(extent.neurons, s.d_model),
          .down = pair(s.d_model, extent.neurons)};
}

}  // namespace

std::vector<Tensor*> Tensors(Lora& lora) {
  if (!lora.q.a.defined()) return {};
  std::vector<Tensor*> all;
  for (Lora::Pair* pair : {&lora.q, &lora.k, &lora.v, &lora.o, &lora.gate, &lora.up, &lora.down}) {
    all.push_back(&pair->a);
    all.push_back(&pair->b);
  }
  return all;
}

std::vector<Lora> TrainLora(const Network& network, const engine::LevelSpec& level,
                            const std::vector<Batch>& batches, const RecoveryOptions& options,
                            const std::function<void(int64_t, double)>& progress) {
  // Its own, so that levels recovered side by side come out as one after the other.
  torch::Generator random =
      at::detail::createCPUGenerator(options.seed + static_cast<uint64_t>(level.percent));
  const engine::ModelShape& s = network.shape();
  const engine::LayerExtent full{s.heads, s.d_ff};
  std::vector<Lora> lora(level.layers.size());
  std::vector<Tensor> trained;
  for (size_t i = 0; i < lora.size(); ++i) {
    if (level.layers[i] == full) continue;
    lora[i] = NewLora(s, level.layers[i], options.rank, network.device(), random);
    for (Tensor* tensor : Tensors(lora[i])) {
      tensor->set_requires_grad(true);
      trained.push_back(*tensor);
    }
  }
  const View view{.extents = &level.layers, .lora = &lora};
  torch::optim::AdamW optimizer(trained,
                                torch::optim::AdamWOptions(options.rate).weight_decay(0.0));
  for (int64_t step = 0; step < options.steps && !trained.empty(); ++step) {
    const double left =
        static_cast<double>(options.steps - step) / static_cast<double>(options.steps);
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options())
        .lr(options.rate * left);
    optimizer.zero_grad();
    const Tensor loss = Loss(network, batches[static_cast<size_t>(step) % batches.size()], view);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(trained, 1.0);
    optimizer.step();
    if (progress) progress(step + 1, loss.item<double>());
  }
  for (Lora& layer : lora) {
    for (Tensor* tensor : Tensors(layer)) *tensor = tensor->detach();
  }
  return lora;
}

}  // namespace withy::elastic
