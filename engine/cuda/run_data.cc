// What a pass reads besides weights and activations: made by CudaRun before the first operation.
#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/round_up.h"
#include "base/status.h"
#include "engine/cuda/run.h"
#include "engine/kv/block.h"

namespace withy::engine::cuda {
namespace {

// What kernels get as arguments is the same for many passes, so that their launches can be played
// as a graph: sizes that grow with a context are rounded up.
constexpr size_t kCopiesAtOnce = 64;
constexpr int32_t kDensityChunksAtOnce = 64;

int StripsOf(int outputs) { return (outputs + kStripOutputs - 1) / kStripOutputs; }

// By context, chunks that rows see or write, ascending.
std::vector<std::vector<int32_t>> SeenChunks(const RowPlan& plan, const Batch& batch,
                                             int32_t layers) {
  std::vector<std::vector<int32_t>> chunks(batch.contexts.size());
  std::vector<int32_t> positions(batch.contexts.size(), -1);  // of the row that sees most
  for (const PlannedRow& planned : plan.rows()) {
    const engine::Row& row = *planned.row;
    const auto context = static_cast<size_t>(row.context);
    positions[context] = std::max(positions[context], row.position);
    chunks[context].push_back(row.slot / kChunkTokens);
    for (const int32_t slot : row.ancestor_slots) chunks[context].push_back(slot / kChunkTokens);
  }
  for (size_t context = 0; context < chunks.size(); ++context) {
    std::vector<int32_t>& seen = chunks[context];
    for (int32_t chunk = 0; chunk * kChunkTokens <= positions[context]; ++chunk) {
      seen.push_back(chunk);
    }
    const auto exists = static_cast<int32_t>(batch.contexts[context].blocks.size()) / layers;
    std::erase_if(seen, [exists](int32_t chunk) { return chunk >= exists; });
    std::ranges::sort(seen);
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  }
  return chunks;
}

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
  runs_ = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(runs_)));
  density_chunks_ = RoundUp(density_chunks_, kDensityChunksAtOnce);
  WITHY_RETURN_IF_ERROR(ReserveBuffers());
  WITHY_RETURN_IF_ERROR(pass_data_.Begin(PassDataBytes()));
  PutRows();
  PutTails();
  PutTiles();
  PutOps();
  WITHY_RETURN_IF_ERROR(PutContexts());
  WITHY_RETURN_IF_ERROR(pass_data_.Send());
  if (kv_copy_count_ > 0) {
    kernels_.copy_kv(gpu_.queue(), {.copies = kv_copies_, .count = kv_copy_count_});
  }
  return absl::OkStatus();
}

// An upper bound.
size_t CudaRun::PassDataBytes() const {
  const ModelShape& s = shape();
  const auto rows = static_cast<size_t>(plan_->count());
  const size_t ops = program_->ops.size();
  const size_t runs = executor_.dense() == nullptr ? 1 : MostRuns(*plan_);
  size_t bytes = PassData::Room<Row>(rows) + 3 * PassData::Room<int32_t>(rows) +
                 PassData::Room<float>(rows * 2 * static_cast<size_t>(s.head_dim)) +
                 PassData::Room<float>(rows * static_cast<size_t>(s.d_model)) +
                 PassData::Room<Context>(batch_.contexts.size()) +
                 PassData::Room<KvPlaces>(kKvFormats) +
                 PassData::Room<TailCopy>(static_cast<size_t>(plan_->tail_blocks()) * kChunkTokens +
                                          kCopiesAtOnce) +
                 6 * PassData::Room<AttendTile>(rows) +
                 ops * (runs * PassData::Room<Product>(4) + PassData::Room<Product>(0) +
                        PassData::Room<LowRankRun>(0) + 4 * PassData::Room<int32_t>(rows)) +
                 2 * PassData::Room<Product>(program_->runs.size()) +
                 4 * PassData::Room<LowRankRun>(ops * executor_.facts().levels.size());
  for (const ContextView& context : batch_.contexts) {
    bytes += 2 * PassData::Room<KvBlockName>(context.blocks.size()) +
             PassData::Room<KvCopy>(context.blocks.size());
  }
  return bytes;
}

void CudaRun::PutRows() {
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
    std::copy_n(executor_.angles().At(row.position), angles_of_row,
                angles.data() + i * angles_of_row);
    if (fetches) {
      std::copy_n(stream->FetchedRow(static_cast<int32_t>(i)), width, fetched.data() + i * width);
    }
  }
  rows_ = pass_data_.Put(rows);
  tokens_ = pass_data_.Put(tokens);
  angles_ = pass_data_.Put(angles);
  fetched_ = fetches ? pass_data_.Put(fetched) : nullptr;
  contexts_ = pass_data_.Place<Context>(batch_.contexts.size());
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
}

// Last, because the lists grow with the contexts.
absl::Status CudaRun::PutContexts() {
  KvMirror& mirror = executor_.kv_mirror();
  const std::vector<std::vector<int32_t>> seen = SeenChunks(*plan_, batch_, shape().layers);
  size_t mirrored = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (mirror.Takes(batch_.contexts[i])) mirrored += seen[i].size();
  }
  WITHY_RETURN_IF_ERROR(mirror.Reserve(mirrored));
  std::vector<Context> contexts;
  std::vector<KvCopy> copies;
  for (size_t i = 0; i < seen.size(); ++i) {
    const ContextView& view = batch_.contexts[i];
    Context& context = contexts.emplace_back();
    WITHY_ASSIGN_OR_RETURN(context.memory, gpu_.MapKv(view.memory));
    mapped_.push_back(view.memory);
    context.blocks = pass_data_.Put(view.blocks);
    if (!mirror.Takes(view)) {
      mirror.Forget(view);
      continue;
    }
    const auto names = mirror.Place(view, seen[i], context.memory, &mirror_pins_, &copies);
    if (names.empty()) continue;
    context.host_blocks = std::exchange(context.blocks, pass_data_.Put(names));
    context.host_memory = std::exchange(context.memory, mirror.memory());
  }
  pass_data_.Fill(contexts_, contexts);
  kv_copies_ = pass_data_.Put(copies);
  kv_copy_count_ = static_cast<int>(copies.size());
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
  copies.resize(RoundUp(copies.size(), kCopiesAtOnce), {.context = -1});
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

void CudaRun::ProductList::Add(const Planned& planned, int first, int count) {
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
    list->Add({product}, 0, run.rows);
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

std::vector<CudaRun::Planned> CudaRun::PlanQkv(const Op& op, const OpData& data) {
  const ModelShape& s = shape();
  std::vector<Planned> products;
  const bool cuts = op.extents != nullptr && s.cuts_kv_heads();
  for (size_t i = 0; i < 2; ++i) {
    Product kv = NewProduct(weights_.matrix(op.weights[i]), input_, op.rows,
                            (i == 0 ? k_ : v_).as<float>(), s.kv_rows());
    kv.normed = true;
    kv.out_extent = cuts ? data.kv_rows : nullptr;
    products.push_back({kv, cuts ? op.extents->kv_rows.data() : nullptr});
  }
  if (op.queries == 0) return products;
  Product q = NewProduct(weights_.matrix(op.weights[2]), input_, op.queries,
                         q_.as<float>() + int64_t{op.first_query} * s.q_rows(), s.q_rows());
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
std::vector<CudaRun::Planned> CudaRun::PlanResidual(const Op& op, const OpData& data) {
  const bool out = op.kind == OpKind::kAttentionOut;
  Product product = NewProduct(weights_.matrix(op.weights[0]), out ? attention_input_ : neurons_,
                               op.rows, x_.as<float>(), shape().d_model);
  product.add = true;
  product.in_extent = out ? data.q_rows : data.neurons;
  FuseNorm(op, &product);
  const int32_t* inputs = nullptr;
  if (op.extents != nullptr) inputs = (out ? op.extents->q_rows : op.extents->neurons).data();
  return {{product, nullptr, inputs}};
}

std::vector<CudaRun::Planned> CudaRun::PlanGateUp(const Op& op, const OpData& data) {
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
  return {{product, op.extents == nullptr ? nullptr : op.extents->neurons.data()}};
}

std::vector<CudaRun::Planned> CudaRun::PlanHead(const Op& op) {
  Product product = NewProduct(weights_.matrix(op.weights[1]), head_input_, op.rows,
                               logits_buffer_.as<float>(), shape().vocab_size);
  product.normed = true;
  return {{product}};
}

// How rows [first, first + rows) of an operation's inputs are computed.
std::vector<RowRun> CudaRun::RunsOf(const Op& op, int first, int rows) const {
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
  } else if (op.layer == LastLayer() && op.kind != OpKind::kQkv) {
    std::copy(wanted.begin(), wanted.end(), planned.begin());
  }
  return SplitRows(*plan_, planned, executor_.options().dense_rows);
}

// Rows of products that have the same inputs.
void CudaRun::PutDense(std::span<const Planned> products, int first, int rows, OpData* data) {
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

void CudaRun::PutProducts(const Op& op, OpData* data) {
  std::vector<Planned> planned;
  switch (op.kind) {
    case OpKind::kNorm:
      break;
    case OpKind::kQkv:
      planned = PlanQkv(op, *data);
      break;
    case OpKind::kAttentionOut:
    case OpKind::kDown:
      planned = PlanResidual(op, *data);
      break;
    case OpKind::kGateUp:
      planned = PlanGateUp(op, *data);
      break;
    case OpKind::kHead:
      planned = PlanHead(op);
      break;
    default:
      return;
  }
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
