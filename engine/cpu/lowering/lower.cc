#include "engine/cpu/lowering/lower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

namespace withy::engine {
namespace {

// Rows per piece: few, so that every thread gets some; with LoRA enough to share unpacked weights.
constexpr PieceSize kPieceRows{1, 16};
constexpr PieceSize kLoraPieceRows{4, 16};

constexpr int32_t kPieceLogits = 4096;

bool Interleaved(const ModelShape& shape) { return shape.rope_pairing == RopePairing::kAdjacent; }

// Where a product that enters the stream goes: to the stream, or to `branch`.
void SetResidual(const Op& op, RowBuffer& branch, MatMulArgs* product) {
  product->accumulate = !op.to_branch;
  if (!op.to_branch) return;
  product->y = branch.data();
  product->y_stride = branch.stride();
}

const KvMemory& MemoryOf(const Batch& batch, const PlannedRow& planned) {
  return batch.contexts[static_cast<size_t>(planned.row->context)].memory;
}

// Weights of norms that have none.
constexpr auto kOnes = [] {
  std::array<float, kMaxHeadDim> ones{};
  for (float& one : ones) one = 1.0f;
  return ones;
}();

// Computes neurons of gates that are cut off, which needs a row's whole gate at once. Such models
// have no LoRA.
void AddCutGateUp(StepList& steps, const Kernels& kernels,
                  const std::array<MatMulArgs, 2>& gate_and_up, float cut,
                  decltype(GateUpFunction::of) of, Activations* neurons) {
  AddMatMuls(steps, kernels, gate_and_up);
  steps.Add(
      gate_and_up[0].rows, kPieceRows,
      [&kernels, gate = gate_and_up[0], up = gate_and_up[1], cut, of, neurons](int begin, int end) {
        for (int i = begin; i < end; ++i) {
          const int width = gate.n_out_extent == nullptr ? gate.w.n_out : gate.n_out_extent[i];
          float* const row = gate.y + i * gate.y_stride;
          kernels.cut_off(row, width, cut);
          of(row, up.y + i * up.y_stride, width, row);
          kernels.prepare(row, gate.y_stride, i, i + 1, 0, width, neurons);
        }
      });
}

// Copies what leaves a layer, as it enters the next one, to the features of the rows that have
// them. Everything passed in stays until the steps have run.
void AddKeepFeatures(const Op& op, const RowPlan& plan, std::span<const int32_t> feature_layers,
                     const LoraLowering& lora, RowBuffer& x, StepList& steps) {
  steps.Add(op.rows, kPieceRows, [&op, &plan, feature_layers, &lora, &x](int begin, int end) {
    for (int32_t i = begin; i < end; ++i) {
      const std::span<float> features = plan.row(i).row->features;
      if (features.empty()) continue;
      const size_t width = features.size() / feature_layers.size();
      for (size_t at = 0; at < feature_layers.size(); ++at) {
        if (feature_layers[at] != op.layer + 1) continue;
        float* const kept = features.data() + at * width;
        std::memcpy(kept, x.row(i), sizeof(float) * width);
        lora.AddToStream(op, i, i + 1, kept, static_cast<ptrdiff_t>(width));
      }
    }
  });
}

// The norm that is the operation's first weight; a bias of it is the last.
NormArgs NormOf(const BoundWeights& weights, const ModelShape& shape, const Op& op) {
  NormArgs norm{.weight = weights.Vector(op.weights[0]), .epsilon = shape.rms_epsilon};
  if (shape.layer_norms) norm.bias = weights.Vector(op.weights[op.weight_count - 1]);
  return norm;
}

}  // namespace

Lowering::Lowering(const ModelFacts& facts, const BoundWeights& weights, const KeyBias& key_bias,
                   const Kernels& kernels, int threads, const LayerTap& tap, WeightStream* stream)
    : facts_(facts),
      weights_(weights),
      key_bias_(key_bias),
      kernels_(kernels),
      threads_(threads),
      tap_(tap),
      stream_(stream),
      geometry_{.layers = facts.shape.kv_layers(),
                .kv_heads = facts.shape.kv_heads,
                .head_dim = facts.shape.head_dim},
      lora_(facts, weights, kernels, work_),
      experts_(facts, weights, kernels, work_, stream == nullptr ? nullptr : stream->experts()),
      streams_(facts, weights, kernels, work_, stream) {
  const std::vector<float>& all = facts.shape.rope_frequencies;
  const auto pairs = static_cast<ptrdiff_t>(facts.shape.rope_dims / 2);
  for (auto from = all.begin(); from != all.end(); from += pairs) {
    ropes_.emplace_back(from, from + pairs);
  }
}

void Lowering::Start(const Program& program, const RowPlan& plan, const Batch& batch,
                     float* logits) {
  program_ = &program;
  plan_ = &plan;
  batch_ = batch;
  logits_ = logits;
  work_.Resize(static_cast<size_t>(plan.count()), facts_.shape, weights_.forms(),
               program.low_rank ? facts_.lora_rank : 0, static_cast<size_t>(plan.tail_blocks()),
               geometry_.BlockBytes());
  density_chunks_ = 0;
  for (const ContextView& context : batch.contexts) {
    density_chunks_ = std::max(density_chunks_, static_cast<int32_t>(context.density.size()));
  }
  for (const Row& row : batch.rows) {
    density_chunks_ = std::max(density_chunks_, static_cast<int32_t>(row.density.size()));
  }
  density_.assign(static_cast<size_t>(plan.count()) * static_cast<size_t>(facts_.shape.kv_heads) *
                      static_cast<size_t>(density_chunks_),
                  0.0f);
  lora_.Start(program, plan);
  experts_.Start(plan);
  streams_.Start(plan);
  // Steps point into this vector, so it must not reallocate while the program is lowered.
  const auto attends = std::count_if(program.ops.begin(), program.ops.end(),
                                     [](const Op& op) { return op.kind == OpKind::kAttend; });
  attention_rows_.clear();
  attention_rows_.reserve(static_cast<size_t>(attends) * static_cast<size_t>(plan.count()));
  ReserveParts();
}

void Lowering::Lower(const Op& op, StepList& steps) {
  switch (op.kind) {
    case OpKind::kEmbed:
      return Embed(op, steps);
    case OpKind::kLayerInputs:
      return streams_.LayerInputs(op, steps);
    case OpKind::kSpread:
      return streams_.Spread(op, steps);
    case OpKind::kPredict:
      return streams_.Predict(op, steps);
    case OpKind::kNorm:
      return Norm(op, steps);
    case OpKind::kQkv:
      return Qkv(op, steps);
    case OpKind::kLaurel:
      return streams_.Laurel(op, steps);
    case OpKind::kStoreKv:
      return StoreKv(op, steps);
    case OpKind::kGatherTail:
      return GatherTail(op, steps);
    case OpKind::kKeepWanted:
      return KeepWanted(steps);
    case OpKind::kAttend:
      return Attend(op, steps);
    case OpKind::kClearHeads:
      return ClearHeads(op, steps);
    case OpKind::kAttentionOut:
      return AttentionOut(op, steps);
    case OpKind::kGateUp:
      return GateUp(op, steps);
    case OpKind::kDown:
      return Down(op, steps);
    case OpKind::kRoute:
      return experts_.Route(op, steps);
    case OpKind::kExpertGateUp:
      return experts_.GateUp(op, steps);
    case OpKind::kExpertDown:
      return experts_.Down(op, steps);
    case OpKind::kAddBranch:
      return AddBranch(op, steps);
    case OpKind::kCorrect:
      return streams_.Correct(op, steps);
    case OpKind::kAddLayerInput:
      return streams_.AddLayerInput(op, steps);
    case OpKind::kMerge:
      return streams_.Merge(op, steps);
    case OpKind::kKeepFeatures:
      return AddKeepFeatures(op, *plan_, batch_.feature_layers, lora_, work_.x, steps);
    case OpKind::kTap:
      return Tap(op, steps);
    case OpKind::kTakeLogitRows:
      return TakeLogitRows(op, steps);
    case OpKind::kHead:
      return Head(op, steps);
    case OpKind::kFinishLogits:
      return FinishLogits(op, steps);
    case OpKind::kHidden:
      return Hidden(op, steps);
  }
}

void Lowering::Embed(const Op& op, StepList& steps) {
  const PackedMatrix& embedding = weights_.Matrix(op.weights[0]);
  const bool fetched = stream_ != nullptr && stream_->StreamsEmbedding();
  steps.Add(op.rows, kPieceRows, [this, &op, &embedding, fetched](int begin, int end) {
    const ModelShape& s = facts_.shape;
    for (int i = begin; i < end; ++i) {
      const Row& row = *plan_->row(i).row;
      if (fetched) {
        std::copy_n(stream_->FetchedRow(i), s.d_model, work_.x.row(i));
      } else {
        UnpackRow(embedding, row.token, work_.x.row(i));
      }
      Scale(work_.x.row(i), s.d_model, op.scale);
      if (const WeightName* positions = op.Find(WeightRole::kPositions)) {
        float* position = work_.out.row(i);  // free until the head
        UnpackRow(weights_.Matrix(*positions), row.position, position);
        kernels_.add(position, s.d_model, work_.x.row(i));
      }
      float* angles = work_.angles.row(i);
      for (size_t rope = 0; rope < ropes_.size(); ++rope) {
        RopeAngles(ropes_[rope], s.rope_scales[rope], row.position, Interleaved(s), angles);
        angles += 2 * s.rope_dims;
      }
    }
  });
}

// With LoRA, one step adds B * a of the previous product to the stream, normalises, and computes
// A * in of the following products, so that LoRA adds no steps.
void Lowering::Norm(const Op& op, StepList& steps) {
  if (op.weight_count == 0) {  // such models have no levels, so no LoRA either
    AddPrepareRows(steps, kernels_, work_.x.data(), work_.x.stride(), op.rows, &work_.input);
    return;
  }
  const NormArgs norm = NormOf(weights_, facts_.shape, op);
  if (!program_->low_rank) {
    AddNormAndPrepareRows(steps, kernels_, work_.x.data(), work_.x.stride(), op.rows, norm,
                          &work_.input);
    return;
  }
  steps.Add(op.rows, kLoraPieceRows, [this, &op, norm](int begin, int end) {
    lora_.AddToStream(op, begin, end, work_.x.row(begin), work_.x.stride());
    for (int i = begin; i < end; ++i) {
      NormAndPrepareRow(kernels_, work_.x.row(i), norm, i, &work_.input);
    }
    lora_.ComputeInputs(op, begin, end);
  });
}

void Lowering::Qkv(const Op& op, StepList& steps) {
  std::array<MatMulArgs, 3> products;
  size_t count = 0;
  for (const auto& [role, to] :
       {std::pair{WeightRole::kK, &work_.k}, std::pair{WeightRole::kV, &work_.v}}) {
    const WeightName* const name = op.Find(role);
    if (name == nullptr) continue;  // those of an earlier layer
    MatMulArgs& kv = products[count++];
    kv = ProductOf(weights_.Matrix(*name), work_.input, op.rows, *to);
    if (op.extents != nullptr && facts_.shape.cuts_kv_heads()) {
      kv.n_out_extent = op.extents->kv_rows.data();
    }
  }
  if (const WeightName* const name = op.Find(WeightRole::kQ)) {
    MatMulArgs& q = products[count++];
    q = ProductOf(weights_.Matrix(*name), work_.input, op.queries, work_.q);
    q.x_row = op.first_query;
    q.y += op.first_query * q.y_stride;
    if (op.extents != nullptr) q.n_out_extent = op.extents->q_rows.data() + op.first_query;
  }
  if (count == 0) return;
  AddMatMuls(steps, kernels_, std::span(products).first(count), lora_.InputProducts(op));
}

// Applies LoRA, bias, head norm and RoPE. Writes K and V, where they are the layer's own, to their
// slots; Q stays in its buffer.
void Lowering::StoreKv(const Op& op, StepList& steps) {
  const bool own_kv = op.kv_layer == op.layer;
  const bool last = own_kv && plan_->OnlyWantedAfterKv(op.layer);
  steps.Add(op.rows, program_->low_rank ? kLoraPieceRows : kPieceRows,
            [this, &op, own_kv, last](int begin, int end) {
              lora_.AddToQkv(op, begin, end);
              for (int i = begin; i < end; ++i) {
                if (own_kv) StoreKeyAndValue(op, i);
                if (!last || plan_->row(i).logits_row >= 0) FinishQuery(op, i);
              }
            });
  if (last && density_chunks_ > 0) {
    steps.Add(1, PieceSize{1, 1}, [this](int, int) { AddDensities(); });
  }
}

void Lowering::NormHeads(const Op& op, WeightRole role, float* heads, int32_t count) const {
  if (!op.Reads(role)) return;
  const ModelShape& s = facts_.shape;
  const float* weight = weights_.Vector({role, op.layer});
  if (op.whole_norms) {
    kernels_.rms_norm(heads, weight, s.rms_epsilon, count * s.head_dim, heads);
    return;
  }
  for (int32_t h = 0; h < count; ++h) {
    float* head = heads + h * s.head_dim;
    kernels_.rms_norm(head, weight, s.rms_epsilon, s.head_dim, head);
  }
}

void Lowering::TurnHeads(const Op& op, int32_t i, float* heads, int32_t count) {
  if (op.rope == ModelShape::kNoRope) return;
  const ModelShape& s = facts_.shape;
  const float* angles = work_.angles.row(i) + ptrdiff_t{op.rope} * 2 * s.rope_dims;
  kernels_.rope(heads, count, s.head_dim, angles, s.rope_dims, Interleaved(s));
}

KvBlockName Lowering::BlockOf(int32_t layer, const PlannedRow& planned, int32_t slot) const {
  const auto chunk = static_cast<size_t>(slot / kChunkTokens);
  const auto layers = static_cast<size_t>(geometry_.layers);
  const ContextView& context = batch_.contexts[static_cast<size_t>(planned.row->context)];
  return context.blocks[chunk * layers + static_cast<size_t>(layer)];
}

void Lowering::StoreKeyAndValue(const Op& op, int32_t i) {
  const ModelShape& s = facts_.shape;
  float* k = work_.k.row(i);
  float* v = work_.v.row(i);
  const int32_t rows =
      op.extents == nullptr ? s.kv_rows() : op.extents->kv_rows[static_cast<size_t>(i)];
  const int32_t heads = rows / s.head_dim;
  std::fill(k + rows, k + s.kv_rows(), 0.0f);
  std::fill(v + rows, v + s.kv_rows(), 0.0f);
  if (op.Reads(WeightRole::kKBias)) {
    kernels_.add(key_bias_.Stored(op.layer), rows, k);
  }
  if (op.Reads(WeightRole::kVBias)) {
    kernels_.add(weights_.Vector({WeightRole::kVBias, op.layer}), rows, v);
  }
  NormHeads(op, WeightRole::kKNorm, k, heads);
  for (int32_t h = 0; s.v_norm && h < heads; ++h) {
    float* const head = v + h * s.head_dim;
    kernels_.rms_norm(head, kOnes.data(), s.rms_epsilon, s.head_dim, head);
  }
  TurnHeads(op, i, k, heads);
  const PlannedRow& planned = plan_->row(i);
  const int32_t slot = planned.row->slot;
  const KvBlockName block = BlockOf(op.kv_layer, planned, slot);
  kernels_.write_kv(geometry_, k, v, block.format, MemoryOf(batch_, planned).At(block),
                    slot % kChunkTokens);
}

void Lowering::FinishQuery(const Op& op, int32_t i) {
  const ModelShape& s = facts_.shape;
  float* q = work_.q.row(i);
  const int32_t heads =
      op.extents == nullptr ? s.heads : op.extents->q_rows[static_cast<size_t>(i)] / s.head_dim;
  if (op.Reads(WeightRole::kQBias)) {
    kernels_.add(weights_.Vector({WeightRole::kQBias, op.layer}), heads * s.head_dim, q);
  }
  NormHeads(op, WeightRole::kQNorm, q, heads);
  TurnHeads(op, i, q, heads);
}

void Lowering::GatherTail(const Op& op, StepList& steps) {
  steps.Add(op.rows, kPieceRows, [this, &op](int begin, int end) {
    for (int i = begin; i < end; ++i) CopyTail(op, i);
  });
}

// Copies K and V from position tail_group * kChunkTokens on into the row's scratch blocks.
void Lowering::CopyTail(const Op& op, int32_t i) {
  const PlannedRow& planned = plan_->row(i);
  if (planned.tail_group < 0) return;
  std::byte* const* tail = work_.tails.data() + planned.tail_first;
  const int32_t begin = planned.tail_group * kChunkTokens;
  for (int32_t p = begin; p <= planned.row->position; ++p) {
    const int32_t slot = planned.SlotAt(p);
    const std::byte* block = MemoryOf(batch_, planned).At(BlockOf(op.kv_layer, planned, slot));
    CopyToken(geometry_, block, slot % kChunkTokens, tail[(p - begin) / kChunkTokens],
              p % kChunkTokens);
  }
}

void Lowering::KeepWanted(StepList& steps) {
  steps.Add(1, 1, [this](int, int) {
    const auto wanted = plan_->wanted();
    for (size_t kept = 0; kept < wanted.size(); ++kept) {
      const int32_t i = wanted[kept];
      const auto to = static_cast<int32_t>(kept);
      if (i == to) continue;
      const auto move = [&](RowBuffer& buffer, int32_t width) {
        std::memcpy(buffer.row(to), buffer.row(i), sizeof(float) * static_cast<size_t>(width));
      };
      const ModelShape& s = facts_.shape;
      move(work_.x, s.d_model);
      move(work_.q, s.q_rows());
      if (s.kv_layers() < s.layers) {
        move(work_.angles, 4 * static_cast<int32_t>(s.rope_frequencies.size()));
      }
      if (s.streams > 1) move(work_.streams, s.streams * s.d_model);
      if (s.laurel_rank > 0) move(work_.laurel, s.d_model);
      if (s.has_layer_inputs()) move(work_.layer_inputs, s.layer_inputs_width());
    }
  });
}

void Lowering::Attend(const Op& op, StepList& steps) {
  const bool all_rows = !plan_->OnlyWantedAfterKv(op.layer);
  for (int32_t i = 0; i < op.rows; ++i) {
    const PlannedRow& planned = plan_->row(all_rows ? i : plan_->wanted()[static_cast<size_t>(i)]);
    const ContextView& context = batch_.contexts[static_cast<size_t>(planned.row->context)];
    const int32_t visible = planned.row->position + 1;
    AttentionRow row{.memory = context.memory.base,
                     .blocks = context.blocks.data() + op.kv_layer,
                     .block_stride = geometry_.layers,
                     .visible = visible,
                     .first = op.window > 0 ? std::max(0, visible - op.window) : 0};
    if (planned.tail_group >= 0) {
      row.tail = work_.tails.data() + planned.tail_first;
      row.tail_group = planned.tail_group;
    }
    attention_rows_.push_back(row);
  }
  AttentionArgs args = AttentionOf(op.rows, all_rows);
  args.scale = op.scale;
  args.cap = op.cap;
  args.sinks = VectorOf(weights_, op, WeightRole::kAttnSinks);
  args.key_bias = key_bias_.Added(op.kv_layer);
  if (op.extents != nullptr) args.head_extent = op.extents->heads.data();
  args.key_items = AttentionKeyItems(args, threads_);
  args.parts = attention_parts_.data();
  AddAttend(steps, kernels_, args);
}

AttentionArgs Lowering::AttentionOf(int32_t rows, bool all_rows) {
  const ModelShape& s = facts_.shape;
  AttentionArgs args;
  args.geometry = geometry_;
  args.q_heads = s.heads;
  args.rows = rows;
  args.row = attention_rows_.data() + attention_rows_.size() - static_cast<size_t>(rows);
  args.q = work_.q.data();
  args.q_stride = work_.q.stride();
  args.out = work_.attended.data();
  args.out_stride = work_.attended.stride();
  args.rank_major = !s.cuts_kv_heads();
  if (density_chunks_ > 0 && all_rows) {
    args.density = density_.data();
    args.density_stride = density_chunks_;
  }
  return args;
}

// Makes room for the parts of all layers' attention, which does not move while steps point at it.
void Lowering::ReserveParts() {
  size_t floats = 0;
  std::pair<int32_t, bool> reserved;  // rows, and whether they are of all rows
  for (const Op& op : program_->ops) {
    if (op.kind != OpKind::kAttend) continue;
    const int32_t rows = op.rows;
    const bool all_rows = !plan_->OnlyWantedAfterKv(op.layer);
    if (reserved == std::pair(rows, all_rows)) continue;
    reserved = {rows, all_rows};
    attention_rows_.clear();
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t row = all_rows ? i : plan_->wanted()[static_cast<size_t>(i)];
      attention_rows_.push_back({.visible = plan_->row(row).row->position + 1});
    }
    const AttentionArgs args = AttentionOf(rows, all_rows);
    if (AttentionKeyItems(args, threads_) > 1) floats = std::max(floats, AttentionPartFloats(args));
  }
  attention_rows_.clear();
  attention_parts_.Resize(floats);
}

void Lowering::AddDensities() const {
  const auto heads = static_cast<size_t>(facts_.shape.kv_heads);
  const auto stride = static_cast<size_t>(density_chunks_);
  for (int32_t i = 0; i < plan_->count(); ++i) {
    const PlannedRow& planned = plan_->row(i);
    const Row& asked = *planned.row;
    if (!asked.ancestor_slots.empty() && asked.density.empty()) continue;
    const std::span<float> sums = asked.density.empty()
                                      ? batch_.contexts[static_cast<size_t>(asked.context)].density
                                      : asked.density;
    const size_t seen = static_cast<size_t>(asked.position) / kChunkTokens + 1;
    const float* row = density_.data() + static_cast<size_t>(i) * heads * stride;
    for (size_t head = 0; head < heads; ++head, row += stride) {
      for (size_t chunk = 0; chunk < std::min(seen, sums.size()); ++chunk)
        sums[chunk] += row[chunk];
    }
  }
}

void Lowering::ClearHeads(const Op& op, StepList& steps) {
  steps.Add(op.rows, kPieceRows, [this, &op](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      float* row = work_.attended.row(i);
      std::fill(row + op.extents->heads[at] * facts_.shape.head_dim, row + op.extents->q_rows[at],
                0.0f);
    }
  });
}

void Lowering::AttentionOut(const Op& op, StepList& steps) {
  const int* extent = op.extents == nullptr ? nullptr : op.extents->q_rows.data();
  AddPrepareRows(steps, kernels_, work_.attended.data(), work_.attended.stride(), op.rows,
                 &work_.attention_input, extent);
  MatMulArgs product =
      ProductOf(weights_.Matrix(op.weights[0]), work_.attention_input, op.rows, work_.x);
  SetResidual(op, work_.branch, &product);
  product.n_in_extent = extent;
  AddMatMuls(steps, kernels_, {&product, 1}, lora_.InputProducts(op),
             VectorOf(weights_, op, WeightRole::kAttnOutputBias));
}

void Lowering::GateUp(const Op& op, StepList& steps) {
  if (!op.Reads(WeightRole::kGate)) {
    const MatMulArgs up = ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.up);
    AddUp(steps, kernels_, up, VectorOf(weights_, op, WeightRole::kUpBias), &work_.neurons);
    return;
  }
  MatMulArgs gate = ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.gate);
  MatMulArgs up = ProductOf(weights_.Matrix(op.weights[1]), work_.input, op.rows, work_.up);
  if (op.extents != nullptr) gate.n_out_extent = up.n_out_extent = op.extents->neurons.data();
  const auto of = GateUpKernel(kernels_, op.activation);
  if (op.gate_cut != ModelShape::kNoCut) {
    AddCutGateUp(steps, kernels_, {gate, up}, op.gate_cut, of, &work_.neurons);
    return;
  }
  AddGateUp(steps, kernels_, gate, up, &work_.neurons, lora_.GateUp(op), {.of = of});
}

void Lowering::Down(const Op& op, StepList& steps) {
  MatMulArgs down = ProductOf(weights_.Matrix(op.weights[0]), work_.neurons, op.rows, work_.x);
  SetResidual(op, work_.branch, &down);
  if (op.extents != nullptr) down.n_in_extent = op.extents->neurons.data();
  AddMatMuls(steps, kernels_, {&down, 1}, lora_.InputProducts(op),
             VectorOf(weights_, op, WeightRole::kDownBias));
}

void Lowering::AddBranch(const Op& op, StepList& steps) {
  steps.Add(op.rows, kPieceRows, [this, &op](int begin, int end) {
    const ModelShape& s = facts_.shape;
    for (int i = begin; i < end; ++i) {
      float* row = work_.branch.row(i);
      for (const WeightName& norm : op.Weights()) {
        kernels_.rms_norm(row, weights_.Vector(norm), s.rms_epsilon, s.d_model, row);
      }
      Scale(row, s.d_model, op.scale);
      kernels_.add(row, s.d_model, work_.x.row(i));
      if (!op.joins_laurel) continue;
      kernels_.add(work_.laurel.row(i), s.d_model, work_.x.row(i));
      Scale(work_.x.row(i), s.d_model, std::numbers::sqrt2_v<float> / 2);
    }
  });
}

void Lowering::Tap(const Op& op, StepList& steps) {
  steps.Add(1, 1, [this, &op](int, int) {
    const auto width = static_cast<size_t>(facts_.shape.d_model);
    std::vector<float> hidden;
    for (int32_t i = 0; i < op.rows; ++i) {
      hidden.insert(hidden.end(), work_.x.row(i), work_.x.row(i) + width);
      float* row = hidden.data() + hidden.size() - width;
      lora_.AddToStream(op, i, i + 1, row, static_cast<ptrdiff_t>(width));
    }
    tap_(op.layer, hidden);
  });
}

void Lowering::TakeLogitRows(const Op& op, StepList& steps) {
  steps.Add(1, 1, [this, &op](int, int) {
    const auto width = static_cast<size_t>(facts_.shape.d_model);
    lora_.AddToStream(op, 0, op.rows, work_.x.data(), work_.x.stride());
    for (int32_t i = 0; i < op.rows; ++i) {
      const PlannedRow& planned = plan_->row(plan_->wanted()[static_cast<size_t>(i)]);
      std::memcpy(work_.out.row(planned.logits_row - plan_->first_logits_row()), work_.x.row(i),
                  sizeof(float) * width);
    }
  });
}

void Lowering::Head(const Op& op, StepList& steps) {
  AddNormAndPrepareRows(steps, kernels_, work_.out.data(), work_.out.stride(), op.rows,
                        NormOf(weights_, facts_.shape, op), &work_.head_input);
  MatMulArgs product =
      ProductOf(weights_.Matrix(op.weights[1]), work_.head_input, op.rows, work_.out);
  product.y = logits_ + int64_t{plan_->first_logits_row()} * facts_.shape.vocab_size;
  product.y_stride = facts_.shape.vocab_size;
  AddMatMuls(steps, kernels_, {&product, 1});
}

void Lowering::Hidden(const Op& op, StepList& steps) {
  steps.Add(op.rows, kPieceRows,
            [this, &op, norm = NormOf(weights_, facts_.shape, op)](int begin, int end) {
              const ModelShape& s = facts_.shape;
              lora_.AddToStream(op, begin, end, work_.x.row(begin), work_.x.stride());
              for (int i = begin; i < end; ++i) {
                const PlannedRow& planned = plan_->row(plan_->wanted()[static_cast<size_t>(i)]);
                float* row = work_.out.row(i);
                NormRow(kernels_, work_.x.row(i), norm, s.d_model, row);
                std::memcpy(logits_ + int64_t{planned.logits_row} * s.d_model, row,
                            sizeof(float) * static_cast<size_t>(s.d_model));
              }
            });
}

void Lowering::FinishLogits(const Op& op, StepList& steps) {
  const int32_t pieces = (facts_.shape.vocab_size + kPieceLogits - 1) / kPieceLogits;
  steps.Add(op.rows * pieces, PieceSize{1, 1}, [this, &op, pieces](int begin, int end) {
    const int32_t vocabulary = facts_.shape.vocab_size;
    for (int i = begin; i < end; ++i) {
      const int32_t from = i % pieces * kPieceLogits;
      const int32_t count = std::min(kPieceLogits, vocabulary - from);
      const int64_t row = plan_->first_logits_row() + i / pieces;
      float* logits = logits_ + row * vocabulary + from;
      Scale(logits, count, op.scale);
      if (op.cap > 0.0f) kernels_.soft_cap(logits, count, op.cap);
    }
  });
}

}  // namespace withy::engine
