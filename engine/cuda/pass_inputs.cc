#include "engine/cuda/pass_inputs.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/round_up.h"
#include "base/status.h"
#include "engine/kv/block.h"

namespace withy::engine::cuda {
namespace {

// What kernels get as arguments is the same for many passes, so that their launches can be played
// as a graph: sizes that grow with a context are rounded up.
constexpr size_t kCopiesAtOnce = 64;
constexpr int32_t kDensityChunksAtOnce = 64;

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

PassInputs::PassInputs(CudaExecutor& executor, const Shape& kernel_shape, Workspace& workspace)
    : executor_(executor),
      gpu_(executor.gpu()),
      kernel_shape_(kernel_shape),
      workspace_(workspace),
      pass_data_(gpu_),
      products_(executor, workspace, pass_data_) {}

absl::Status PassInputs::Prepare(const Program& program, const RowPlan& plan, const Batch& batch) {
  Release();  // of a try that failed
  program_ = &program;
  plan_ = &plan;
  batch_ = batch;
  at_ = {};
  const PassSizes sizes = Sizes();
  WITHY_RETURN_IF_ERROR(workspace_.Reserve(executor_.facts(), executor_.bound().forms(), sizes));
  at_.density_chunks = sizes.density_chunks;
  at_.runs = sizes.runs;
  at_.tile_limits =
      LimitsOf(kernel_shape_, sizes.key_bias, workspace_.part_row_bytes, workspace_.parts.bytes());
  WITHY_RETURN_IF_ERROR(pass_data_.Begin(Bytes()));
  PutRows();
  PutWanted();
  PutTails();
  PutTiles();
  PutOps();
  WITHY_RETURN_IF_ERROR(PutContexts());
  const KvCopy* const copies = pass_data_.Put(kv_copies_);
  WITHY_RETURN_IF_ERROR(pass_data_.Send());
  if (!kv_copies_.empty()) {
    gpu_.kernels().copy_kv(gpu_.queue(),
                           {.copies = copies, .count = static_cast<int>(kv_copies_.size())});
  }
  return absl::OkStatus();
}

void PassInputs::Release() {
  for (const KvMemory& memory : mapped_) gpu_.UnmapKv(memory);
  mapped_.clear();
  executor_.kv_mirror().Unpin(&mirror_pins_);
}

PassSizes PassInputs::Sizes() {
  const KvGeometry geometry{shape().layers, shape().kv_heads, shape().head_dim};
  PassSizes sizes{.rows = static_cast<size_t>(plan_->count()),
                  .logit_rows = plan_->hidden() ? 0 : plan_->wanted().size(),
                  .tail_bytes = static_cast<size_t>(plan_->tail_blocks()) * geometry.BlockBytes(),
                  .low_rank = program_->low_rank,
                  .key_bias = executor_.weights().has_key_bias()};
  half_contexts_.clear();
  for (const ContextView& context : batch_.contexts) {
    sizes.density_chunks =
        std::max(sizes.density_chunks, static_cast<int32_t>(context.density.size()));
    half_contexts_.push_back(
        std::any_of(context.blocks.begin(), context.blocks.end(),
                    [](const KvBlockName& name) { return name.format == KvFormat::kF16; }));
    sizes.half_blocks = sizes.half_blocks || half_contexts_.back();
  }
  for (const PlannedRow& planned : plan_->rows()) {
    sizes.density_chunks =
        std::max(sizes.density_chunks, static_cast<int32_t>(planned.row->density.size()));
    sizes.runs = std::max(sizes.runs, planned.row->position / kRunKeys + 1);
  }
  sizes.runs = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(sizes.runs)));
  sizes.density_chunks = RoundUp(sizes.density_chunks, kDensityChunksAtOnce);
  return sizes;
}

// An upper bound.
size_t PassInputs::Bytes() const {
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

void PassInputs::PutRows() {
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
  at_.rows = pass_data_.Put(rows);
  at_.tokens = pass_data_.Put(tokens);
  at_.angles = pass_data_.Put(angles);
  at_.fetched = fetches ? pass_data_.Put(fetched) : nullptr;
  at_.contexts = pass_data_.Place<Context>(batch_.contexts.size());
  const KvGeometry geometry{s.layers, s.kv_heads, s.head_dim};
  std::vector<KvPlaces> places(kKvFormats);
  for (size_t format = 1; format < places.size(); ++format) {
    places[format] = PlacesOf(geometry, static_cast<KvFormat>(format));
  }
  at_.places = pass_data_.Put(places);
}

void PassInputs::PutWanted() {
  std::vector<int32_t> wanted(plan_->wanted().begin(), plan_->wanted().end());
  std::vector<int32_t> logit_rows;
  for (const int32_t i : wanted) {
    logit_rows.push_back(plan_->row(i).logits_row - plan_->first_logits_row());
  }
  at_.wanted = pass_data_.Put(wanted);
  at_.logit_rows = pass_data_.Put(logit_rows);
}

// Last, because the lists grow with the contexts.
absl::Status PassInputs::PutContexts() {
  KvMirror& mirror = executor_.kv_mirror();
  const std::vector<std::vector<int32_t>> seen = SeenChunks(*plan_, batch_, shape().layers);
  size_t mirrored = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (mirror.Takes(batch_.contexts[i])) mirrored += seen[i].size();
  }
  WITHY_RETURN_IF_ERROR(mirror.Reserve(mirrored));
  std::vector<Context> contexts;
  kv_copies_.clear();
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
    const auto names = mirror.Place(view, seen[i], context.memory, &mirror_pins_, &kv_copies_);
    if (names.empty()) continue;
    context.host_blocks = std::exchange(context.blocks, pass_data_.Put(names));
    context.host_memory = std::exchange(context.memory, mirror.memory());
  }
  pass_data_.Fill(at_.contexts, contexts);
  return absl::OkStatus();
}

void PassInputs::PutTails() {
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
  at_.copy_count = static_cast<int>(copies.size());
  at_.copies = pass_data_.Put(copies);
}

void PassInputs::PutTiles() {
  std::vector<int32_t> all(static_cast<size_t>(plan_->count()));
  std::iota(all.begin(), all.end(), 0);
  const auto list = [&](std::vector<AttendTile> tiles) -> TileList {
    const AttendTile* const on_device = pass_data_.Put(tiles);
    return {std::move(tiles), on_device};
  };
  const auto put = [&](std::span<const int32_t> chosen, Tiles* to) {
    AttendTiles plan = PlanTiles(plan_->rows(), chosen, half_contexts_, at_.tile_limits);
    *to = {list(std::move(plan.tiles)), list(std::move(plan.tails)), list(std::move(plan.single))};
  };
  put(all, &at_.all_tiles);
  put(plan_->wanted(), &at_.wanted_tiles);
}

void PassInputs::PutOps() {
  const size_t count = program_->ops.size();
  ops_.assign(count, OpData{});
  products_.Start(*program_, *plan_);
  for (size_t i = 0; i < count; ++i) {
    const Op& op = program_->ops[i];
    OpData* data = &ops_[i];
    PutExtents(op, data);
    PutRuns(op, data);
    products_.Put(op, data);
  }
}

void PassInputs::PutExtents(const Op& op, OpData* data) {
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

void PassInputs::PutRuns(const Op& op, OpData* data) {
  const std::span<const engine::LowRankRun> runs = program_->Runs(op.add);
  if (runs.empty()) return;
  const int rank = executor_.facts().lora_rank;
  std::vector<LowRankRun> put;
  for (const engine::LowRankRun& run : runs) {
    LowRankRun& to = put.emplace_back();
    to.first = run.first;
    to.rows = run.rows;
    const auto output = [&](LoraPart part) {
      return executor_.weights().lora_output({part, op.add_layer, run.level});
    };
    if (op.kind == OpKind::kStoreKv) {
      to.b[0] = output(LoraPart::kQ);
      to.b[1] = output(LoraPart::kK);
      to.b[2] = output(LoraPart::kV);
      for (int i = 0; i < 3; ++i)
        to.a_offset[i] = products_.LoraOffset(LoraPart::kAttentionIn) + i * rank;
    } else if (op.kind == OpKind::kGateUp) {
      to.b[0] = output(LoraPart::kGate);
      to.b[1] = output(LoraPart::kUp);
      for (int i = 0; i < 2; ++i)
        to.a_offset[i] = products_.LoraOffset(LoraPart::kFfnIn) + i * rank;
    } else {
      to.b[0] = output(op.add_part);
      to.a_offset[0] = products_.LoraOffset(
          op.add_part == LoraPart::kAttentionOut ? LoraPart::kAttentionOutIn : LoraPart::kDownIn);
    }
  }
  data->runs = pass_data_.Put(put);
  data->run_count = static_cast<int>(put.size());
}

}  // namespace withy::engine::cuda
