#include "offline/elastic/reorder.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

Tensor Descending(const Tensor& importance, int64_t dim) {
  return importance.argsort(/*stable=*/true, dim, /*descending=*/true);
}

// `order` for the first items, then the others unchanged, along the last dimension up to `count`.
Tensor Followed(const Tensor& order, int64_t count) {
  Tensor others = torch::arange(order.size(-1), count, order.options());
  if (order.dim() == 2) others = others.expand({order.size(0), -1});
  return torch::cat({order, others}, -1);
}

// Row indices of the units in `order`, each with `size` rows.
Tensor RowsOf(const Tensor& order, int64_t size) {
  return (order.unsqueeze(1) * size + torch::arange(size, order.options())).flatten();
}

void Take(const Tensor& indices, int64_t dim, Tensor* weight) {
  if (weight->defined()) *weight = weight->index_select(dim, indices).contiguous();
}

// The order of one layer's units, of the full model or of a level, which has fewer.
class Order {
 public:
  Order(const engine::ModelShape& shape, const UnitImportance& units)
      : shape_(shape), neurons_(Descending(units.neurons, 0)) {
    if (shape.cuts_kv_heads()) {
      groups_ = Descending(units.heads.sum(1), 0);
    } else {
      in_group_ = Descending(units.heads, 1);
    }
  }

  Tensor Neurons(int64_t count) const { return Followed(neurons_, count); }

  Tensor QueryHeads(int32_t heads) const {
    const int64_t group = shape_.query_heads_per_group();
    if (shape_.cuts_kv_heads()) return RowsOf(Followed(groups_, heads / group), group);
    const int64_t present = heads / shape_.kv_heads;
    const Tensor first = torch::arange(shape_.kv_heads, in_group_.options()).unsqueeze(1) * present;
    return (Followed(in_group_, present) + first).flatten();
  }

  // Rows of Q and columns of O for `heads` query heads.
  Tensor QueryRows(int32_t heads) const { return RowsOf(QueryHeads(heads), shape_.head_dim); }

  // Rows of K and V for `heads` query heads; undefined if they do not move.
  Tensor KvRows(int32_t heads) const {
    if (!shape_.cuts_kv_heads()) return {};
    return RowsOf(Followed(groups_, shape_.kv_heads_of(heads)), shape_.head_dim);
  }

 private:
  const engine::ModelShape& shape_;
  Tensor neurons_;
  Tensor in_group_;  // [kv_heads, query heads per KV head], or
  Tensor groups_;    // [kv_heads]
};

void ReorderLayer(const engine::ModelShape& shape, const Order& order, Layer* layer) {
  const Tensor neurons = order.Neurons(shape.d_ff);
  Take(neurons, 0, &layer->neurons_were);
  Take(order.QueryHeads(shape.heads), 0, &layer->heads_were);
  Take(neurons, 0, &layer->gate);
  Take(neurons, 0, &layer->up);
  Take(neurons, 1, &layer->down);
  const Tensor queries = order.QueryRows(shape.heads);
  Take(queries, 0, &layer->q);
  Take(queries, 0, &layer->q_bias);
  Take(queries, 1, &layer->o);
  const Tensor kv = order.KvRows(shape.heads);
  if (!kv.defined()) return;
  for (Tensor* weight : {&layer->k, &layer->v, &layer->k_bias, &layer->v_bias}) Take(kv, 0, weight);
}

void ReorderLora(const engine::LayerExtent& extent, const Order& order, Lora* lora) {
  const Tensor neurons = order.Neurons(extent.neurons);
  Take(neurons, 0, &lora->gate.b);
  Take(neurons, 0, &lora->up.b);
  Take(neurons, 1, &lora->down.a);
  const Tensor queries = order.QueryRows(extent.heads);
  Take(queries, 0, &lora->q.b);
  Take(queries, 1, &lora->o.a);
  const Tensor kv = order.KvRows(extent.heads);
  if (!kv.defined()) return;
  Take(kv, 0, &lora->k.b);
  Take(kv, 0, &lora->v.b);
}

}  // namespace

void Reorder(Network& network, const std::vector<UnitImportance>& units,
             std::span<ElasticLevel> levels) {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < units.size(); ++i) {
    const Order order(network.shape(), units[i]);
    ReorderLayer(network.shape(), order, &network.layers()[i]);
    for (ElasticLevel& level : levels) {
      if (!level.lora.empty()) ReorderLora(level.spec.layers[i], order, &level.lora[i]);
    }
  }
}

}  // namespace withy::elastic
