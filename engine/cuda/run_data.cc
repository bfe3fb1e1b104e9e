// What a pass reads besides weights and activations: made by CudaRun before the first operation.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "engine/cpu/kernels.h"
#include "engine/cuda/run.h"
#include "engine/kv/block.h"

namespace withy::engine::cuda {
namespace {

int StripsOf(int outputs) { return (outputs + kStripOutputs - 1) / kStripOutputs; }

}  // namespace

absl::Status CudaRun::Prepare() {
  UnmapContexts();  // of a try that failed
  density_chunks_ = 0;
  half_blocks_ = false;
  half_contexts_.clear();
  runs_ = 1;
  for (const ContextView& context : batch_.contexts) {
    density_chunks_ = std::max(density_chunks_, static_cast<int32_t>(context.density.size()));
    half_contexts_.push_back(
        std::any_of(context.blocks.begin(), context.blocks.end(),
                    [](const KvBlockName& name) { return name.format == KvFormat::kF16; }));
    half_blocks_ = half_blocks_ || half_contexts_.back();
  }
  for (const PlannedRow& planned : plan_->rows()) {
    density_chunks_ = std::max(density_chunks_, static_cast<int32_t>(planned.row->density.size()));
    runs_ = std::max(runs_, planned.row->position / kRunKeys + 1);
  }
  WITHY_RETURN_IF_ERROR(ReserveBuffers());
  WITHY_RETURN_IF_ERROR(pass_data_.Begin(PassDataBytes()));
  WITHY_RETURN_IF_ERROR(PutRows());
  PutTails();
  PutTiles();
  PutOps();
  return pass_data_.Send();
}

// An upper bound.
size_t CudaRun::PassDataBytes() const {
  const ModelShape& s = shape();
  const auto rows = static_cast<size_t>(plan_->count());
  const size_t ops = program_->ops.size();
  size_t bytes =
      PassData::Room<Row>(rows) + 3 * PassData::Room<int32_t>(rows) +
      PassData::Room<float>(rows * 2 * static_cast<size_t>(s.head_dim)) +
      PassData::Room<float>(rows * static_cast<size_t>(s.d_model)) +
      PassData::Room<Context>(batch_.contexts.size()) + PassData::Room<KvPlaces>(kKvFormats) +
      PassData::Room<TailCopy>(static_cast<size_t>(plan_->tail_blocks()) * kChunkTokens) +
      6 * PassData::Room<AttendTile>(rows) +
      ops * (PassData::Room<Product>(4) + PassData::Room<Product>(0) +
             PassData::Room<LowRankRun>(0) + 4 * PassData::Room<int32_t>(rows)) +
      2 * PassData::Room<Product>(program_->runs.size()) +
      4 * PassData::Room<LowRankRun>(ops * executor_.facts().levels.size());
  for (const ContextView& context : batch_.contexts) {
    bytes += PassData::Room<KvBlockName>(context.blocks.size());
  }
  return bytes;
}

absl::Status CudaRun::PutRows() {
  const ModelShape& s = shape();
  const WeightStream* const stream = executor_.stream();
  const bool fetches = stream != nullptr && stream->StreamsEmbedding();
  const auto angles_of_row = static_cast<size_t>(2 * s.head_dim);
  const auto width = static_cast<size_t>(s.d_model);
  const auto count = static_cast<size_t>(plan_->count());
  std::vector<Row> rows;
  std::vector<int32_t> tokens;
  std::vector<float> angles(count * angles_of_row);
  std::vector<float> fetched(fetches ? count * width : 0);
  for (size_t i = 0; i < count; ++i) {
    const PlannedRow& planned = plan_->row(static_cast<int32_t>(i));
    const engine::Row& row = *planned.row;
    rows.push_back({.token = row.token,
                    .position = row.position,
                    .slot = row.slot,
                    .context = row.context,
                    .tail_group = planned.tail_group,
                    .tail_first = planned.tail_first});
    tokens.push_back(row.token);
    RopeAngles(s.rope_frequencies, row.position, kernel_shape_.interleaved,
               angles.data() + i * angles_of_row);
    if (fetches) {
      std::copy_n(stream->FetchedRow(static_cast<int32_t>(i)), width, fetched.data() + i * width);
    }
  }
  rows_ = pass_data_.Put(rows);
  tokens_ = pass_data_.Put(tokens);
  angles_ = pass_data_.Put(angles);
  fetched_ = fetches ? pass_data_.Put(fetched) : nullptr;
  std::vector<Context> contexts;
  for (const ContextView& view : batch_.contexts) {
    Context& context = contexts.emplace_back();
    WITHY_ASSIGN_OR_RETURN(context.memory, gpu_.MapKv(view.memory));
    mapped_.push_back(view.memory);
    context.blocks = pass_data_.Put(view.blocks);
  }
  contexts_ = pass_data_.Put(contexts);
  const KvGeometry geometry{s.layers, s.kv_heads, s.head_dim};
  std::vector<KvPlaces> places(kKvFormats);
  for (size_t format = 1; format < places.size(); ++format) {
    places[format] = PlacesOf(geometry, static_cast<KvFormat>(format));
  }
  places_ = pass_data_.Put(places);
  std::vector<int32_t> wanted(plan_->wanted().begin(), plan_->wanted().end());
  std::vector<int32_t> logit_rows;
  for (const int32_t i : wanted) {
    logit_rows.push_back(plan_->row(i).logits_row - plan_->first_logits_row());
  }
  wanted_ = pass_data_.Put(wanted);
  logit_rows_ = pass_data_.Put(logit_rows);
  return absl::OkStatus();
}

void CudaRun::PutTails() {
  std::vector<TailCopy> copies;
  for (const PlannedRow& planned : plan_->rows()) {
    if (planned.tail_group < 0) continue;
    const int32_t begin = planned.tail_group * kChunkTokens;
    for (int32_t p = begin; p <= planned.row->position; ++p) {
      copies.push_back({.context = planned.row->context,
                        .slot = planned.SlotAt(p),
                        .to_block = planned.tail_first + (p - begin) / kChunkTokens,
                        .to_slot = p % kChunkTokens});
    }
  }
  copy_count_ = static_cast<int>(copies.size());
  copies_ = pass_data_.Put(copies);
}

void CudaRun::PutTiles() {
  std::vector<int32_t> all(static_cast<size_t>(plan_->count()));
  std::iota(all.begin(), all.end(), 0);
  const auto list = [&](std::vector<AttendTile> tiles) -> TileList {
    const AttendTile* const on_device = pass_data_.Put(tiles);
    return {std::move(tiles), on_device};
  };
  const auto put = [&](std::span<const int32_t> chosen, Tiles* to) {
    AttendTiles plan = PlanTiles(plan_->rows(), chosen, half_contexts_, tile_limits_);
    *to = {list(std::move(plan.tiles)), list(std::move(plan.tails)), list(std::move(plan.single))};
  };
  put(all, &tiles_);
  put(plan_->wanted(), &wanted_tiles_);
}

void CudaRun::PutOps() {
  const size_t count = program_->ops.size();
  op_data_.assign(count, OpData{});
  normed_.assign(count, false);
  for (size_t i = 0; i < count; ++i) {
    const Op& op = program_->ops[i];
    OpData* data = &op_data_[i];
    PutExtents(op, data);
    PutRuns(op, data);
    PutProducts(op, data);
  }
}

void CudaRun::PutExtents(const Op& op, OpData* data) {
  if (op.extents == nullptr) return;
  const RowExtents& extents = *op.extents;
  switch (op.kind) {
    case OpKind::kQkv:
    case OpKind::kStoreKv:
      data->kv_rows = pass_data_.Put(extents.kv_rows);
      data->q_rows = pass_data_.Put(extents.q_rows);
      break;
    case OpKind::kAttend:
      data->heads = pass_data_.Put(extents.heads);
      break;
    case OpKind::kAttentionOut:
      data->q_rows = pass_data_.Put(extents.q_rows);
      break;
    case OpKind::kGateUp:
    case OpKind::kDown:
      data->neurons = pass_data_.Put(extents.neurons);
      break;
    default:
      break;
  }
}

int CudaRun::LoraOffset(LoraPart in) const {
  static constexpr int kOffset[4] = {0, 3, 4, 6};  // of the A parts, in ranks
  return kOffset[static_cast<size_t>(in)] * executor_.facts().lora_rank;
}

void CudaRun::PutRuns(const Op& op, OpData* data) {
  const std::span<const engine::LowRankRun> runs = program_->Runs(op.add);
  if (runs.empty()) return;
  const int rank = executor_.facts().lora_rank;
  std::vector<LowRankRun> put;
  for (const engine::LowRankRun& run : runs) {
    LowRankRun& to = put.emplace_back();
    to.first = run.first;
    to.rows = run.rows;
    const auto output = [&](LoraPart part) {
      return weights_.lora_output({part, op.add_layer, run.level});
    };
    if (op.kind == OpKind::kStoreKv) {
      to.b[0] = output(LoraPart::kQ);
      to.b[1] = output(LoraPart::kK);
      to.b[2] = output(LoraPart::kV);
      for (int i = 0; i < 3; ++i) to.a_offset[i] = LoraOffset(LoraPart::kAttentionIn) + i * rank;
    } else if (op.kind == OpKind::kGateUp) {
      to.b[0] = output(LoraPart::kGate);
      to.b[1] = output(LoraPart::kUp);
      for (int i = 0; i < 2; ++i) to.a_offset[i] = LoraOffset(LoraPart::kFfnIn) + i * rank;
    } else {
      to.b[0] = output(op.add_part);
      to.a_offset[0] = LoraOffset(op.add_part == LoraPart::kAttentionOut ? LoraPart::kAttentionOutIn
                                                                         : LoraPart::kDownIn);
    }
  }
  data->runs = pass_data_.Put(put);
  data->run_count = static_cast<int>(put.size());
}

Product CudaRun::NewProduct(const Matrix& w, const InputBuffer& x, int rows, float* y,
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

void CudaRun::ProductList::Add(Product product, int outputs) {
  product.first_strip = strips;
  strips += StripsOf(outputs);
  rows = std::max(rows, product.rows);
  products.push_back(product);
}

CudaRun::OpProducts CudaRun::PutList(const ProductList& list) {
  return {pass_data_.Put(list.products), static_cast<int>(list.products.size()), list.strips,
          list.rows};
}

// Adds the products that compute a = A * input of op.lower.
void CudaRun::AddLoraInputs(const Op& op, ProductList* list) {
  const int stride = 7 * executor_.facts().lora_rank;
  for (const engine::LowRankRun& run : program_->Runs(op.lower)) {
    const Matrix& a = weights_.lora_input({op.lower_part, op.layer, run.level});
    const InputBuffer& x = op.lower_part == LoraPart::kAttentionOutIn ? attention_input_
                           : op.lower_part == LoraPart::kDownIn       ? neurons_
                                                                      : input_;
    float* const y = lora_.as<float>() + int64_t{run.first} * stride + LoraOffset(op.lower_part);
    Product product = NewProduct(a, x, run.rows, y, stride);
    product.x_row = run.first;
    product.normed = op.lower_part == LoraPart::kAttentionIn || op.lower_part == LoraPart::kFfnIn;
    list->Add(product, a.n_out);
  }
}

// The outputs are the residual stream: where a norm follows and nothing is added in between, the
// product makes its inputs, too.
void CudaRun::FuseNorm(const Op& op, Product* product) {
  const auto at = static_cast<size_t>(&op - program_->ops.data()) + 1;
  if (program_->low_rank || at == program_->ops.size()) return;
  const Op& next = program_->ops[at];
  if (next.kind != OpKind::kNorm || next.rows != op.rows) return;
  product->next_weight = weights_.vector(next.weights[0]);
  product->next = input_.get();
  product->quantise = input_.quantise();
  product->keep_floats = input_.keep_floats();
  normed_[at] = true;
}

void CudaRun::AddQkv(const Op& op, const OpData& data, ProductList* list) {
  const ModelShape& s = shape();
  const bool cuts = op.extents != nullptr && s.cuts_kv_heads();
  for (size_t i = 0; i < 2; ++i) {
    Product kv = NewProduct(weights_.matrix(op.weights[i]), input_, op.rows,
                            (i == 0 ? k_ : v_).as<float>(), s.kv_rows());
    kv.normed = true;
    kv.out_extent = cuts ? data.kv_rows : nullptr;
    list->Add(kv, cuts ? op.extents->kv_rows.front() : s.kv_rows());
  }
  if (op.queries == 0) return;
  Product q = NewProduct(weights_.matrix(op.weights[2]), input_, op.queries,
                         q_.as<float>() + int64_t{op.first_query} * s.q_rows(), s.q_rows());
  q.x_row = op.first_query;
  q.normed = true;
  int outputs = s.q_rows();
  if (op.extents != nullptr) {
    q.out_extent = data.q_rows + op.first_query;
    outputs = op.extents->q_rows[static_cast<size_t>(op.first_query)];
  }
  list->Add(q, outputs);
}

// The product of attention's output, or of the neurons, which is added to the residual stream.
void CudaRun::AddResidual(const Op& op, const OpData& data, ProductList* list) {
  const bool out = op.kind == OpKind::kAttentionOut;
  Product product = NewProduct(weights_.matrix(op.weights[0]), out ? attention_input_ : neurons_,
                               op.rows, x_.as<float>(), shape().d_model);
  product.add = true;
  product.in_extent = out ? data.q_rows : data.neurons;
  FuseNorm(op, &product);
  list->Add(product, shape().d_model);
}

void CudaRun::AddGateUp(const Op& op, const OpData& data, ProductList* list) {
  Product product = NewProduct(weights_.matrix(op.weights[0]), input_, op.rows, nullptr, 0);
  product.up = weights_.matrix(op.weights[1]);
  product.normed = true;
  product.out_extent = data.neurons;
  product.neurons = neurons_.get();
  product.quantise = neurons_.quantise();
  product.keep_floats = neurons_.keep_floats();
  product.runs = data.runs;
  product.run_count = data.run_count;
  product.a = lora_.as<float>();
  product.a_stride = 7 * executor_.facts().lora_rank;
  list->Add(product, op.extents == nullptr ? shape().d_ff : op.extents->neurons.front());
}

void CudaRun::AddHead(const Op& op, ProductList* list) {
  Product product = NewProduct(weights_.matrix(op.weights[1]), head_input_, op.rows,
                               logits_buffer_.as<float>(), shape().vocab_size);
  product.normed = true;
  list->Add(product, shape().vocab_size);
}

void CudaRun::PutProducts(const Op& op, OpData* data) {
  ProductList list;
  switch (op.kind) {
    case OpKind::kNorm:
      AddLoraInputs(op, &list);
      if (!list.products.empty()) data->lower = PutList(list);
      return;
    case OpKind::kQkv:
      AddQkv(op, *data, &list);
      AddLoraInputs(op, &list);
      break;
    case OpKind::kAttentionOut:
    case OpKind::kDown:
      AddResidual(op, *data, &list);
      AddLoraInputs(op, &list);
      break;
    case OpKind::kGateUp:
      AddGateUp(op, *data, &list);
      break;
    case OpKind::kHead:
      AddHead(op, &list);
      break;
    default:
      return;
  }
  data->products = PutList(list);
}

}  // namespace withy::engine::cuda
