#include "elasticizer/elastic/reorder.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

void ReorderNeurons(Layer& layer, const Tensor& importance) {
  const Tensor order = importance.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  layer.gate = layer.gate.index_select(0, order).contiguous();
  layer.up = layer.up.index_select(0, order).contiguous();
  layer.down = layer.down.index_select(1, order).contiguous();
}

// Rows of the heads in `order`, one after the other.
Tensor RowsOf(const Tensor& order, int64_t head_dim) {
  const Tensor within = torch::arange(head_dim, order.options());
  return (order.unsqueeze(1) * head_dim + within).flatten();
}

void Take(const Tensor& rows, Tensor* weight) {
  if (weight->defined()) *weight = weight->index_select(0, rows).contiguous();
}

void ReorderHeads(Layer& layer, const engine::ModelShape& shape, const Tensor& importance) {
  const int64_t group = shape.query_heads_per_group();
  const auto whole = importance.options().dtype(torch::kInt64);
  Tensor heads;  // [heads], the file's order
  if (shape.cuts_kv_heads()) {
    const Tensor groups =
        importance.sum(1).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
    heads = (groups.unsqueeze(1) * group + torch::arange(group, whole)).flatten();
    const Tensor kv_rows = RowsOf(groups, shape.head_dim);
    for (Tensor* weight : {&layer.k, &layer.v, &layer.k_bias, &layer.v_bias}) Take(kv_rows, weight);
  } else {
    const Tensor rank = importance.argsort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
    heads = (rank + torch::arange(shape.kv_heads, whole).unsqueeze(1) * group).flatten();
  }
  const Tensor rows = RowsOf(heads, shape.head_dim);
  Take(rows, &layer.q);
  Take(rows, &layer.q_bias);
  layer.o = layer.o.index_select(1, rows).contiguous();
}

}  // namespace

void Reorder(Network& network, const std::vector<UnitImportance>& units) {
  torch::NoGradGuard no_grad;
  const engine::ModelShape& shape = network.shape();
  for (size_t i = 0; i < units.size(); ++i) {
    Layer& layer = network.layers()[i];
    ReorderNeurons(layer, units[i].neurons);
    ReorderHeads(layer, shape, units[i].heads);
  }
}

}  // namespace withy::elastic
