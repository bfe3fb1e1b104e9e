#include "elasticizer/elastic/importance.h"

#include <algorithm>
#include <numeric>

namespace withy::elastic {
namespace {

using torch::Tensor;

std::vector<Tensor*> Matrices(Layer& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

Tensor Worth(const Tensor& weight) { return (weight.grad() * weight).abs(); }

// Adds `worth` of each weight to its unit.
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

std::vector<UnitImportance> Nothing(const Network& network) {
  const engine::ModelShape& s = network.shape();
  std::vector<UnitImportance> units;
  for (int32_t layer = 0; layer < s.layers; ++layer) {
    units.push_back({torch::zeros({s.kv_heads, s.query_heads_per_group()}, network.device()),
                     torch::zeros({s.d_ff}, network.device())});
  }
  return units;
}

}  // namespace

std::vector<UnitImportance> MeasureUnits(Network& network, const std::vector<Batch>& batches) {
  const engine::ModelShape& s = network.shape();
  std::vector<UnitImportance> units = Nothing(network);
  for (Layer& layer : network.layers()) {
    for (Tensor* matrix : Matrices(layer)) matrix->set_requires_grad(true);
  }
  for (const Batch& batch : batches) {
    Loss(network, batch).backward();
    for (size_t i = 0; i < units.size(); ++i) {
      Accumulate(s, network.layers()[i], Worth, &units[i]);
      for (Tensor* matrix : Matrices(network.layers()[i])) matrix->mutable_grad() = Tensor();
    }
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
