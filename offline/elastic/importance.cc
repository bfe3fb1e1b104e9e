#include "offline/elastic/importance.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "offline/elastic/work.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

std::vector<Tensor*> Matrices(Layer& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

// Adds the `worth` of each weight to its unit.
template <typename WorthOf>
void Accumulate(const engine::ModelShape& shape, const Layer& layer, WorthOf worth,
                UnitImportance* out) {
  torch::NoGradGuard no_grad;
  const std::vector<int64_t> heads = {shape.kv_heads, shape.query_heads_per_group(),
                                      shape.head_dim};
  out->heads += worth(layer.q).sum(1).view(heads).sum(2);
  out->heads += worth(layer.o).sum(0).view(heads).sum(2);
  if (shape.cuts_kv_heads()) {
    const std::vector<int64_t> kv_heads = {shape.kv_heads, 1, shape.head_dim};
    out->heads += (worth(layer.k) + worth(layer.v)).sum(1).view(kv_heads).sum(2) /
                  shape.query_heads_per_group();
  }
  out->neurons += worth(layer.gate).sum(1) + worth(layer.up).sum(1) + worth(layer.down).sum(0);
}

UnitImportance Nothing(const engine::ModelShape& s, const engine::LayerExtent& extent,
                       torch::Device device) {
  const int64_t of_a_group =
      s.cuts_kv_heads() ? s.query_heads_per_group() : extent.heads / s.kv_heads;
  return {torch::zeros({s.kv_heads_of(extent.heads), of_a_group}, device),
          torch::zeros({extent.neurons}, device)};
}

std::vector<UnitImportance> Nothing(const Network& network) {
  const engine::ModelShape& s = network.shape();
  std::vector<UnitImportance> units;
  for (int32_t layer = 0; layer < s.layers; ++layer) {
    units.push_back(Nothing(s, {s.heads, s.d_ff}, network.device()));
  }
  return units;
}

std::vector<UnitImportance> Nothing(const Network& network, const engine::LevelSpec& level) {
  std::vector<UnitImportance> units;
  for (const engine::LayerExtent& extent : level.layers) {
    units.push_back(Nothing(network.shape(), extent, network.device()));
  }
  return units;
}

// Gates for one layer of `extent`.
Gates OpenGates(const engine::LayerExtent& extent, int64_t tokens, torch::Device device) {
  const auto options = torch::dtype(torch::kFloat32).device(device);
  return {torch::ones({tokens, extent.heads}, options).set_requires_grad(true),
          torch::ones({tokens, extent.neurons}, options).set_requires_grad(true)};
}

// Sum over the tokens of the squared gradient; undefined if the level drops that part of the layer.
Tensor Worth(const Tensor& gate) {
  if (!gate.grad().defined()) return torch::zeros({gate.size(1)}, gate.options());
  return gate.grad().square().sum(0);
}

// A piece of a batch for one worker, and its share of the batch's weight.
struct Share {
  Batch piece;
  double weight = 0;
};

std::vector<Share> SharesOf(const Batch& batch) {
  const double all = batch.weight.sum().item<double>();
  std::vector<Share> shares;
  for (Batch& piece : Pieces(batch)) {
    const double weight = piece.weight.sum().item<double>() / all;
    shares.push_back({std::move(piece), weight});
  }
  return shares;
}

std::vector<UnitImportance> UnitsOfShare(const Network& network, const Share& share,
                                         const engine::LevelSpec& level,
                                         const std::vector<Lora>& lora) {
  std::vector<UnitImportance> units = Nothing(network, level);
  if (share.weight == 0) return units;
  std::vector<Gates> gates;
  for (const engine::LayerExtent& extent : level.layers) {
    gates.push_back(OpenGates(extent, share.piece.tokens.numel(), network.device()));
  }
  const View view{
      .extents = &level.layers, .lora = lora.empty() ? nullptr : &lora, .gates = &gates};
  (Margin(network, share.piece, view) * share.weight).backward();
  for (size_t i = 0; i < units.size(); ++i) {
    units[i].heads += Worth(gates[i].heads).view(units[i].heads.sizes());
    units[i].neurons += Worth(gates[i].neurons);
  }
  return units;
}

void Add(const std::vector<UnitImportance>& part, std::vector<UnitImportance>* units) {
  for (size_t i = 0; i < units->size(); ++i) {
    (*units)[i].heads += part[i].heads;
    (*units)[i].neurons += part[i].neurons;
  }
}

// The number of batches done, then heads and neurons layer by layer.
std::vector<Tensor> State(size_t done, const std::vector<UnitImportance>& units) {
  std::vector<Tensor> state = {torch::tensor({static_cast<int64_t>(done)}, torch::kInt64)};
  for (const UnitImportance& layer : units) {
    state.push_back(layer.heads.to(torch::kCPU));
    state.push_back(layer.neurons.to(torch::kCPU));
  }
  return state;
}

// Returns the number of batches in the state; leaves `units` unchanged if its shape differs.
size_t Restore(const StageState& stage_state, size_t batches, std::vector<UnitImportance>* units) {
  const auto state = stage_state.Load();
  if (!state.has_value() || state->size() != 1 + 2 * units->size()) return 0;
  const auto done = static_cast<size_t>((*state)[0].item<int64_t>());
  std::vector<UnitImportance> found;
  for (size_t i = 0; i < units->size(); ++i) {
    const Tensor& heads = (*state)[1 + 2 * i];
    const Tensor& neurons = (*state)[2 + 2 * i];
    const UnitImportance& layer = (*units)[i];
    if (heads.sizes() != layer.heads.sizes() || neurons.sizes() != layer.neurons.sizes()) return 0;
    found.push_back({heads.to(layer.heads.device()), neurons.to(layer.neurons.device())});
  }
  if (done > batches) return 0;
  *units = std::move(found);
  return done;
}

}  // namespace

std::vector<UnitImportance> MeasureUnits(const Network& network, const std::vector<Batch>& batches,
                                         const engine::LevelSpec& level,
                                         const std::vector<Lora>& lora) {
  return *MeasureUnits(network, batches, level, lora, train::Workers(1), 0, {});
}

absl::StatusOr<std::vector<UnitImportance>> MeasureUnits(const Network& network,
                                                         const std::vector<Batch>& batches,
                                                         const engine::LevelSpec& level,
                                                         const std::vector<Lora>& lora,
                                                         const train::Workers& workers,
                                                         double cost_s, Checkpointer checkpointer) {
  std::vector<UnitImportance> units = Nothing(network, level);
  size_t done = Restore(checkpointer.stage_state, batches.size(), &units);
  if (checkpointer.resumed && done > 0) checkpointer.resumed(static_cast<double>(done) * cost_s);
  while (done < batches.size()) {
    // Processes as many batches at once as give every worker a piece; sums are added in order.
    std::vector<Share> shares;
    size_t end = done;
    for (; end < batches.size() && (end == done || std::ssize(shares) < workers.threads()); ++end) {
      for (Share& share : SharesOf(batches[end])) shares.push_back(std::move(share));
    }
    std::vector<std::vector<UnitImportance>> parts(shares.size());
    workers.Run(std::ssize(shares), [&](int64_t i) {
      const auto s = static_cast<size_t>(i);
      parts[s] = UnitsOfShare(network, shares[s], level, lora);
    });
    for (const std::vector<UnitImportance>& part : parts) Add(part, &units);
    if (checkpointer.advance) checkpointer.advance(static_cast<double>(end - done) * cost_s);
    done = end;
    WITHY_RETURN_IF_ERROR(checkpointer.stage_state.SaveIfDue([&] { return State(done, units); }));
  }
  return units;
}

std::vector<PartImportance> InOrder(const std::vector<UnitImportance>& units,
                                    const engine::ModelShape& shape) {
  const auto descending = [](const Tensor& values) {
    return std::get<0>(values.sort(-1, /*descending=*/true));
  };
  const auto numbers = [](const Tensor& row) {
    const Tensor all = row.to(torch::kCPU, torch::kFloat64).contiguous();
    return std::vector<double>(all.data_ptr<double>(), all.data_ptr<double>() + all.numel());
  };
  std::vector<PartImportance> parts;
  for (const UnitImportance& layer : units) {
    const Tensor heads =
        shape.cuts_kv_heads() ? descending(layer.heads.sum(1)) : descending(layer.heads).sum(0);
    parts.push_back({numbers(heads), numbers(descending(layer.neurons))});
  }
  return parts;
}

std::vector<UnitImportance> MeasureGradients(Network& network, const std::vector<Batch>& batches,
                                             const std::function<void()>& progress) {
  const engine::ModelShape& s = network.shape();
  std::vector<UnitImportance> units = Nothing(network);
  for (Layer& layer : network.layers()) {
    for (Tensor* matrix : Matrices(layer)) matrix->set_requires_grad(true);
  }
  const auto worth = [](const Tensor& weight) { return (weight.grad() * weight).abs(); };
  for (const Batch& batch : batches) {
    Loss(network, batch).backward();
    for (size_t i = 0; i < units.size(); ++i) {
      Accumulate(s, network.layers()[i], worth, &units[i]);
      for (Tensor* matrix : Matrices(network.layers()[i])) matrix->mutable_grad() = Tensor();
    }
    if (progress) progress();
  }
  for (Layer& layer : network.layers()) {
    for (Tensor* matrix : Matrices(layer)) *matrix = matrix->detach();
  }
  return units;
}

std::vector<UnitImportance> MeasureMagnitude(const Network& network) {
  std::vector<UnitImportance> units = Nothing(network);
  for (size_t i = 0; i < units.size(); ++i) {
    Accumulate(
        network.shape(), network.layers()[i], [](const Tensor& weight) { return weight.abs(); },
        &units[i]);
  }
  return units;
}

std::vector<UnitImportance> DrawImportance(const Network& network, uint64_t seed) {
  torch::manual_seed(seed);
  std::vector<UnitImportance> units = Nothing(network);
  for (UnitImportance& layer : units) {
    layer.heads.uniform_();
    layer.neurons.uniform_();
  }
  return units;
}

std::vector<double> MeasureLayers(const Network& network, const std::vector<Batch>& batches) {
  const double whole = MeanLoss(network, batches);
  std::vector<double> importance;
  for (int32_t layer = 0; layer < network.shape().layers; ++layer) {
    importance.push_back(MeanLoss(network, batches, {.without_layer = layer}) - whole);
  }
  return importance;
}

std::vector<int32_t> AnchorOrder(const std::vector<double>& layer_importance) {
  std::vector<int32_t> order(layer_importance.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return layer_importance[static_cast<size_t>(a)] > layer_importance[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace withy::elastic
