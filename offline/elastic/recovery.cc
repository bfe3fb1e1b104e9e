#include "offline/elastic/recovery.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

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
  Lora lora;
  const auto pair = [&](int64_t outputs, int64_t inputs) {
    return NewPair(outputs, inputs, rank, device, random);
  };
  if (extent.heads > 0) {
    lora.q = pair(q, s.d_model);
    lora.k = pair(kv, s.d_model);
    lora.v = pair(kv, s.d_model);
    lora.o = pair(s.d_model, q);
  }
  if (extent.neurons > 0) {
    lora.gate = pair(extent.neurons, s.d_model);
    lora.up = pair(extent.neurons, s.d_model);
    lora.down = pair(s.d_model, extent.neurons);
  }
  return lora;
}

// Copies the parts of `above`'s LoRA for the remaining outputs and inputs of a layer.
void InheritLayer(const engine::ModelShape& s, const Lora& above, const engine::LayerExtent& to,
                  Lora* lora) {
  const auto rows = [](const Tensor& b, int64_t count) { return b.narrow(0, 0, count).clone(); };
  if (to.heads > 0 && above.q.a.defined()) {
    const int64_t kv = int64_t{s.kv_heads_of(to.heads)} * s.head_dim;
    lora->q = {above.q.a.clone(), HeadPrefix(above.q.b, 0, s, to.heads).clone()};
    lora->k = {above.k.a.clone(), rows(above.k.b, kv)};
    lora->v = {above.v.a.clone(), rows(above.v.b, kv)};
    lora->o = {HeadPrefix(above.o.a, 1, s, to.heads).clone(), above.o.b.clone()};
  }
  if (to.neurons > 0 && above.down.a.defined()) {
    lora->gate = {above.gate.a.clone(), rows(above.gate.b, to.neurons)};
    lora->up = {above.up.a.clone(), rows(above.up.b, to.neurons)};
    lora->down = {above.down.a.narrow(1, 0, to.neurons).clone(), above.down.b.clone()};
  }
}

// The same values with separate gradients.
std::vector<Lora> Replica(std::vector<Lora> lora) {
  for (Lora& layer : lora) {
    for (Tensor* tensor : Tensors(layer)) *tensor = tensor->detach().set_requires_grad(true);
  }
  return lora;
}

// Mean loss of the batch; adds its gradients to `lora`.
double Accumulate(const Network& network, const engine::LevelSpec& level, const Batch& batch,
                  const train::Workers& workers, std::vector<Lora>& lora) {
  const std::vector<Batch> pieces = Pieces(batch);
  const double weight = batch.weight.sum().item<double>();
  std::vector<std::vector<Lora>> replicas;
  for (size_t i = 0; i < pieces.size(); ++i) replicas.push_back(Replica(lora));
  std::vector<double> losses(pieces.size());
  workers.Run(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const auto p = static_cast<size_t>(i);
    const double share = pieces[p].weight.sum().item<double>() / weight;
    if (share == 0) return;
    const View view{.extents = &level.layers, .lora = &replicas[p]};
    const Tensor loss = Judge(network, pieces[p], view) * share;
    loss.backward();
    losses[p] = loss.item<double>();
  });
  for (size_t layer = 0; layer < lora.size(); ++layer) {
    const std::vector<Tensor*> sums = Tensors(lora[layer]);
    for (std::vector<Lora>& replica : replicas) {
      const std::vector<Tensor*> parts = Tensors(replica[layer]);
      for (size_t t = 0; t < sums.size(); ++t) {
        const Tensor& part = parts[t]->grad();
        if (!part.defined()) continue;
        Tensor& sum = sums[t]->mutable_grad();
        if (sum.defined()) {
          sum += part;
        } else {
          sum = part;
        }
      }
    }
  }
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

}  // namespace

std::vector<Lora> InheritLora(const engine::ModelShape& shape, const std::vector<Lora>& above,
                              const engine::LevelSpec& level) {
  std::vector<Lora> lora(level.layers.size());
  for (size_t i = 0; i < lora.size() && !above.empty(); ++i) {
    InheritLayer(shape, above[i], level.layers[i], &lora[i]);
  }
  return lora;
}

std::vector<Lora::Pair*> PairsOf(Lora& lora, const engine::LayerExtent& extent) {
  std::vector<Lora::Pair*> pairs;
  if (extent.heads > 0) pairs = {&lora.q, &lora.k, &lora.v, &lora.o};
  if (extent.neurons > 0) pairs.insert(pairs.end(), {&lora.gate, &lora.up, &lora.down});
  return pairs;
}

std::vector<Tensor*> Tensors(Lora& lora) {
  std::vector<Tensor*> all;
  for (Lora::Pair* pair : PairsOf(lora, {.heads = 1, .neurons = 1})) {  // any that may exist
    if (!pair->a.defined()) continue;
    all.push_back(&pair->a);
    all.push_back(&pair->b);
  }
  return all;
}

LoraTraining::LoraTraining(const Network& network, const engine::LevelSpec& level,
                           const std::vector<Batch>& batches, const RecoveryOptions& options,
                           const std::vector<Lora>* above)
    : network_(network), level_(level), batches_(batches), options_(options) {
  // A separate generator, so that parallel and sequential recoveries give equal results.
  torch::Generator random =
      at::detail::createCPUGenerator(options.seed + static_cast<uint64_t>(level.percent));
  const engine::ModelShape& s = network.shape();
  const engine::LayerExtent full{s.heads, s.d_ff};
  lora_.resize(level.layers.size());
  for (size_t i = 0; i < lora_.size(); ++i) {
    if (level.layers[i] == full) continue;
    lora_[i] = NewLora(s, level.layers[i], options.rank, network.device(), random);
    if (above != nullptr && !above->empty())
      InheritLayer(s, (*above)[i], level.layers[i], &lora_[i]);
    for (Tensor* tensor : Tensors(lora_[i])) {
      tensor->set_requires_grad(true);
      trained_.push_back(
          {*tensor, torch::zeros_like(*tensor), torch::zeros_like(*tensor), /*steps=*/0});
    }
  }
}

double LoraTraining::Step(const train::Workers& workers) {
  const Batch& batch =
      batches_[static_cast<size_t>(options_.first_batch + step_) % batches_.size()];
  const double loss = Accumulate(network_, level_, batch, workers, lora_);
  std::vector<Tensor> values;
  for (const Trained& tensor : trained_) values.push_back(tensor.value);
  torch::nn::utils::clip_grad_norm_(values, 1.0);
  const double left =
      static_cast<double>(options_.steps - step_) / static_cast<double>(options_.steps);
  for (Trained& tensor : trained_) Update(options_.rate * left, &tensor);
  ++step_;
  return loss;
}

// AdamW without decay, as in torch.optim, whose state cannot be saved and restored by the same code
// for all versions of LibTorch.
void LoraTraining::Update(double rate, Trained* tensor) {
  constexpr double kBeta1 = 0.9;
  constexpr double kBeta2 = 0.999;
  constexpr double kEps = 1e-8;
  torch::NoGradGuard no_grad;
  Tensor gradient = tensor->value.grad();
  tensor->value.mutable_grad() = Tensor();
  if (!gradient.defined()) {
    if (tensor->steps == 0) return;  // not used at this level
    gradient = torch::zeros_like(tensor->value);
  }
  const auto steps = static_cast<double>(++tensor->steps);
  tensor->first.mul_(kBeta1).add_(gradient, 1 - kBeta1);
  tensor->second.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
  const Tensor scale = (tensor->second.sqrt() / std::sqrt(1 - std::pow(kBeta2, steps))).add_(kEps);
  tensor->value.addcdiv_(tensor->first, scale, -rate / (1 - std::pow(kBeta1, steps)));
}

std::vector<Tensor> LoraTraining::State() const {
  std::vector<Tensor> state = {torch::tensor({step_}, torch::kInt64)};
  for (const Trained& tensor : trained_) {
    // Copies, because training continues while they are written.
    for (const Tensor* each : {&tensor.value, &tensor.first, &tensor.second})
      state.push_back(each->detach().to(torch::kCPU).clone());
    state.push_back(torch::tensor({tensor.steps}, torch::kInt64));
  }
  return state;
}

bool LoraTraining::Restore(std::span<const Tensor> state) {
  torch::NoGradGuard no_grad;
  if (state.size() != StateTensors() || state[0].numel() != 1) return false;
  for (size_t i = 0; i < trained_.size(); ++i) {
    for (size_t part = 1; part <= 3; ++part) {
      if (state[4 * i + part].sizes() != trained_[i].value.sizes()) return false;
    }
  }
  for (size_t i = 0; i < trained_.size(); ++i) {
    trained_[i].value.copy_(state[4 * i + 1]);
    trained_[i].first.copy_(state[4 * i + 2]);
    trained_[i].second.copy_(state[4 * i + 3]);
    trained_[i].steps = state[4 * i + 4].item<int64_t>();
  }
  step_ = state[0].item<int64_t>();
  return true;
}

std::vector<Lora> LoraTraining::Take() const {
  std::vector<Lora> lora = lora_;
  for (Lora& layer : lora) {
    for (Tensor* tensor : Tensors(layer)) *tensor = tensor->detach();
  }
  return lora;
}

std::vector<Lora> TrainLora(const Network& network, const engine::LevelSpec& level,
                            const std::vector<Batch>& batches, const RecoveryOptions& options,
                            const train::Workers& workers, const std::vector<Lora>* above,
                            const std::function<void(int64_t, double)>& progress) {
  LoraTraining training(network, level, batches, options, above);
  while (!training.done()) {
    const double loss = training.Step(workers);
    if (progress) progress(training.step(), loss);
  }
  return training.Take();
}

}  // namespace withy::elastic
