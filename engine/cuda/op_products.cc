#include "engine/cuda/op_products.h"

#include <algorithm>

namespace withy::engine::cuda {
namespace {

int StripsOf(int outputs) { return (outputs + kStripOutputs - 1) / kStripOutputs; }

}  // namespace

void OpProductPlan::Start(const Program& program, const RowPlan& plan) {
  program_ = &program;
  plan_ = &plan;
  normed_.assign(program.ops.size(), false);
}

int OpProductPlan::LoraOffset(LoraPart in) const {
  static constexpr int kOffset[4] = {0, 3, 4, 6};  // of the A parts, in ranks
  return kOffset[static_cast<size_t>(in)] * executor_.facts().lora_rank;
}

Product OpProductPlan::NewProduct(const Matrix& w, const InputBuffer& x, int rows, float* y,
                                  int64_t stride) const {
  Product product;
  product.w = w;
  product.x = x.get();
  product.rows = rows;
  product.y = y;
  product.y_stride = stride;
  product.epsilon = shape().rms_epsilon;
  return product;
}

void OpProductPlan::ProductList::Add(const Planned& planned, int first, int count) {
  Product product = planned.product;
  product.x_row += first;
  product.rows = count;
  if (product.y != nullptr) product.y += first * product.y_stride;
  if (product.out_extent != nullptr) product.out_extent += first;
  if (product.in_extent != nullptr) product.in_extent += first;
  product.first_strip = strips;
  strips += StripsOf(planned.outputs != nullptr ? planned.outputs[first] : product.w.n_out);
  rows = std::max(rows, count);
  products.push_back(product);
}

OpProducts OpProductPlan::PutList(const ProductList& list) {
  return {pass_data_.Put(list.products), static_cast<int>(list.products.size()), list.strips,
          list.rows};
}

// Adds the products that compute a = A * input of op.lower.
void OpProductPlan::AddLoraInputs(const Op& op, ProductList* list) {
  const int stride = 7 * executor_.facts().lora_rank;
  for (const engine::LowRankRun& run : program_->Runs(op.lower)) {
    const Matrix& a = weights_.lora_input({op.lower_part, op.layer, run.level});
    const InputBuffer& x = op.lower_part == LoraPart::kAttentionOutIn ? workspace_.attention_input
                           : op.lower_part == LoraPart::kDownIn       ? workspace_.neurons
                                                                      : workspace_.input;
    float* const y =
        workspace_.lora.as<float>() + int64_t{run.first} * stride + LoraOffset(op.lower_part);
    Product product = NewProduct(a, x, run.rows, y, stride);
    product.x_row = run.first;
    product.normed = op.lower_part == LoraPart::kAttentionIn || op.lower_part == LoraPart::kFfnIn;
    list->Add({product}, 0, run.rows);
  }
}

// The outputs are the residual stream: where a norm follows and nothing is added in between, the
// product makes its inputs, too.
void OpProductPlan::FuseNorm(const Op& op, Product* product) {
  const auto at = static_cast<size_t>(&op - program_->ops.data()) + 1;
  if (program_->low_rank || at == program_->ops.size()) return;
  const Op& next = program_->ops[at];
  if (next.kind != OpKind::kNorm || next.rows != op.rows) return;
  product->next_weight = weights_.vector(next.weights[0]);
  product->next = workspace_.input.get();
  product->quantise = workspace_.input.quantise();
  product->keep_floats = workspace_.input.keep_floats();
  normed_[at] = true;
}

std::vector<OpProductPlan::Planned> OpProductPlan::PlanQkv(const Op& op, const OpData& data) {
  const ModelShape& s = shape();
  std::vector<Planned> products;
  const bool cuts = op.extents != nullptr && s.cuts_kv_heads();
  for (size_t i = 0; i < 2; ++i) {
    Product kv = NewProduct(weights_.matrix(op.weights[i]), workspace_.input, op.rows,
                            (i == 0 ? workspace_.k : workspace_.v).as<float>(), s.kv_rows());
    kv.normed = true;
    kv.out_extent = cuts ? data.kv_rows : nullptr;
    products.push_back({kv, cuts ? op.extents->kv_rows.data() : nullptr});
  }
  if (op.queries == 0) return products;
  Product q =
      NewProduct(weights_.matrix(op.weights[2]), workspace_.input, op.queries,
                 workspace_.q.as<float>() + int64_t{op.first_query} * s.q_rows(), s.q_rows());
  q.x_row = op.first_query;
  q.normed = true;
  const int32_t* outputs = nullptr;
  if (op.extents != nullptr) {
    q.out_extent = data.q_rows + op.first_query;
    outputs = op.extents->q_rows.data() + op.first_query;
  }
  products.push_back({q, outputs});
  return products;
}

// The product of attention's output, or of the neurons, which is added to the residual stream.
std::vector<OpProductPlan::Planned> OpProductPlan::PlanResidual(const Op& op, const OpData& data) {
  const bool out = op.kind == OpKind::kAttentionOut;
  Product product = NewProduct(weights_.matrix(op.weights[0]),
                               out ? workspace_.attention_input : workspace_.neurons, op.rows,
                               workspace_.x.as<float>(), shape().d_model);
  product.add = true;
  product.in_extent = out ? data.q_rows : data.neurons;
  FuseNorm(op, &product);
  const int32_t* inputs = nullptr;
  if (op.extents != nullptr) inputs = (out ? op.extents->q_rows : op.extents->neurons).data();
  return {{product, nullptr, inputs}};
}

std::vector<OpProductPlan::Planned> OpProductPlan::PlanGateUp(const Op& op, const OpData& data) {
  Product product =
      NewProduct(weights_.matrix(op.weights[0]), workspace_.input, op.rows, nullptr, 0);
  product.up = weights_.matrix(op.weights[1]);
  product.normed = true;
  product.out_extent = data.neurons;
  product.neurons = workspace_.neurons.get();
  product.quantise = workspace_.neurons.quantise();
  product.keep_floats = workspace_.neurons.keep_floats();
  product.runs = data.runs;
  product.run_count = data.run_count;
  product.a = workspace_.lora.as<float>();
  product.a_stride = 7 * executor_.facts().lora_rank;
  return {{product, op.extents == nullptr ? nullptr : op.extents->neurons.data()}};
}

std::vector<OpProductPlan::Planned> OpProductPlan::PlanHead(const Op& op) {
  Product product = NewProduct(weights_.matrix(op.weights[1]), workspace_.head_input, op.rows,
                               workspace_.logits.as<float>(), shape().vocab_size);
  product.normed = true;
  return {{product}};
}

// How rows [first, first + rows) of an operation's inputs are computed.
std::vector<RowRun> OpProductPlan::RunsOf(const Op& op, int first, int rows) const {
  if (executor_.dense() == nullptr || rows < executor_.options().dense_rows) {
    return {{0, rows, false}};
  }
  std::vector<int32_t> planned(static_cast<size_t>(rows));
  const std::span<const int32_t> wanted = plan_->wanted();
  for (int i = 0; i < rows; ++i) planned[static_cast<size_t>(i)] = first + i;
  if (op.kind == OpKind::kHead) {
    for (const int32_t i : wanted) {
      planned[static_cast<size_t>(plan_->row(i).logits_row - plan_->first_logits_row())] = i;
    }
  } else if (op.layer == shape().layers - 1 && op.kind != OpKind::kQkv) {
    std::copy(wanted.begin(), wanted.end(), planned.begin());
  }
  return SplitRows(*plan_, planned, executor_.options().dense_rows);
}

// Rows of products that have the same inputs.
void OpProductPlan::PutDense(std::span<const Planned> products, int first, int rows, OpData* data) {
  ProductList list;
  for (const Planned& planned : products) list.Add(planned, first, rows);
  const Planned& one = products.front();
  const int inputs = one.inputs != nullptr ? one.inputs[first] : one.product.w.n_in;
  const bool floats = std::any_of(products.begin(), products.end(), [](const Planned& planned) {
    return !IsQuantized(planned.product.w.type) ||
           (planned.product.up.n_out > 0 && !IsQuantized(planned.product.up.type));
  });
  if (list.strips == 0) return;
  data->dense.push_back({.products = pass_data_.Put(list.products),
                         .count = static_cast<int>(list.products.size()),
                         .strips = list.strips,
                         .rows = rows,
                         .blocks = (inputs + 31) / 32,
                         .fused = one.product.up.n_out > 0,
                         .from_floats = floats});
}

std::vector<OpProductPlan::Planned> OpProductPlan::Plan(const Op& op, const OpData& data) {
  switch (op.kind) {
    case OpKind::kQkv:
      return PlanQkv(op, data);
    case OpKind::kAttentionOut:
    case OpKind::kDown:
      return PlanResidual(op, data);
    case OpKind::kGateUp:
      return PlanGateUp(op, data);
    case OpKind::kHead:
      return PlanHead(op);
    default:
      return {};
  }
}

void OpProductPlan::Put(const Op& op, OpData* data) {
  const std::vector<Planned> planned = Plan(op, *data);
  ProductList list;
  for (size_t i = 0; i < planned.size();) {
    const Product& product = planned[i].product;
    size_t end = i + 1;  // those of the same rows
    while (end < planned.size() && planned[end].product.x_row == product.x_row &&
           planned[end].product.rows == product.rows) {
      ++end;
    }
    const std::span<const Planned> alike = std::span(planned).subspan(i, end - i);
    for (const RowRun& run : RunsOf(op, product.x_row, product.rows)) {
      if (run.dense) {
        PutDense(alike, run.first, run.rows, data);
      } else {
        for (const Planned& one : alike) list.Add(one, run.first, run.rows);
      }
    }
    i = end;
  }
  AddLoraInputs(op, &list);
  if (list.products.empty()) return;
  (op.kind == OpKind::kNorm ? data->lower : data->products) = PutList(list);
}

}  // namespace withy::engine::cuda
