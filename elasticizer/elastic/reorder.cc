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

void ReorderHeads(Layer& layer, const engine::ModelShape& shape, const Tensor& importance) {
  const int64_t group = shape.query_heads_per_group();
  const Tensor rank = importance.argsort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  const Tensor first =
      torch::arange(shape.kv_heads, rank.options().dtype(torch::kInt64)).unsqueeze(1) * group;
  const Tensor heads = (rank + first).flatten();  // [heads], the file's order
  const Tensor within = torch::arange(shape.head_dim, heads.options());
  const Tensor rows = (heads.unsqueeze(1) * shape.head_dim + within).flatten();
  layer.q = layer.q.index_select(0, rows).contiguous();
  if (layer.q_bias.defined()) layer.q_bias = layer.q_bias.index_select(0, rows).contiguous();
  layer.o = layer.o.index_select(1, rows).contiguous();
}

}  // namespace

void Reorder(Network& network, const std::vector<UnitImportance>& units) {
  torch::NoGradGuard no_grad;
  const engine::ModelShape& shape = network.shape();
  for (size_t i = 0; i < units.size(); ++i) {
    Layer& layer = network.layers()[i];
    ReorderNeurons(layer, units[i].neurons);
    if (shape.query_heads_per_group() >= 3) ReorderHeads(layer, shape, units[i].heads);
  }
}

}  // namespace withy::elastic
