#include "elasticizer/elastic/recovery.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace withy::elastic {
namespace {

using torch::Tensor;

constexpr int64_t kPieceTokens = 512;  // of a batch, for one thread

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

// Takes over what `above` has learnt of a layer for the outputs and inputs that stay.
void HandDownLayer(const engine::ModelShape& s, const Lora& above, const engine::LayerExtent& to,
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

// A batch in pieces of at most `kPieceTokens`, or of one line. How many does not depend on the
// threads, so neither do the sums.
std::vector<Batch> Pieces(const Batch& batch) {
  const int64_t lines = batch.tokens.size(0);
  const int64_t length = batch.tokens.size(1);
  const int64_t lines_a_piece = std::max<int64_t>(1, kPieceTokens / length);
  std::vector<Batch> pieces;
  for (int64_t first = 0; first < lines; first += lines_a_piece) {
    const int64_t count = std::min(lines_a_piece, lines - first);
    pieces.push_back({batch.tokens.narrow(0, first, count),
                      batch.next.narrow(0, first * length, count * length),
                      batch.weight.narrow(0, first * length, count * length)});
  }
  return pieces;
}

// The same values with gradients of their own.
std::vector<Lora> Replica(std::vector<Lora> lora) {
  for (Lora& layer : lora) {
    for (Tensor* tensor : Tensors(layer)) *tensor = tensor->detach().set_requires_grad(true);
  }
  return lora;
}

// Mean loss of the batch; leaves its gradients in `lora`.
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
    const Tensor loss = Loss(network, pieces[p], view) * share;
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

std::vector<Lora> HandDown(const engine::ModelShape& shape, const std::vector<Lora>& above,
                           const engine::LevelSpec& level) {
  std::vector<Lora> lora(level.layers.size());
  for (size_t i = 0; i < lora.size() && !above.empty(); ++i) {
    HandDownLayer(shape, above[i], level.layers[i], &lora[i]);
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
  for (Lora::Pair* pair : PairsOf(lora, {.heads = 1, .neurons = 1})) {  // that there may be
    if (!pair->a.defined()) continue;
    all.push_back(&pair->a);
    all.push_back(&pair->b);
  }
  return all;
}

std::vector<Lora> TrainLora(const Network& network, const engine::LevelSpec& level,
                            const std::vector<Batch>& batches, const RecoveryOptions& options,
                            const train::Workers& workers, const std::vector<Lora>* above,
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
    if (above != nullptr && !above->empty())
      HandDownLayer(s, (*above)[i], level.layers[i], &lora[i]);
    for (Tensor* tensor : Tensors(lora[i])) {
      tensor->set_requires_grad(true);
      trained.push_back(*tensor);
    }
  }
  torch::optim::AdamW optimizer(trained,
                                torch::optim::AdamWOptions(options.rate).weight_decay(0.0));
  for (int64_t step = 0; step < options.steps && !trained.empty(); ++step) {
    const double left =
        static_cast<double>(options.steps - step) / static_cast<double>(options.steps);
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options())
        .lr(options.rate * left);
    optimizer.zero_grad();
    const Batch& batch = batches[static_cast<size_t>(options.first_batch + step) % batches.size()];
    const double loss = Accumulate(network, level, batch, workers, lora);
    torch::nn::utils::clip_grad_norm_(trained, 1.0);
    optimizer.step();
    if (progress) progress(step + 1, loss);
  }
  for (Lora& layer : lora) {
    for (Tensor* tensor : Tensors(layer)) *tensor = tensor->detach();
  }
  return lora;
}

}  // namespace withy::elastic
