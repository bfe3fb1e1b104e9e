// The forward pass of llama, qwen2 and qwen3, piece by piece. forward_lora.cc has what levels add.
#include "engine/model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/parallel.h"

namespace withy::engine {
namespace {

bool Interleaved(const ModelShape& shape) { return shape.rope_pairing == RopePairing::kAdjacent; }

// Rows a piece: few enough for every thread, of LoRA enough to share what is unpacked.
constexpr PieceSize kPieceRows{1, 16};
constexpr PieceSize kLoraPieceRows{4, 16};

// Steps that a layer and the output head take at most.
constexpr int kMaxLayerSteps = 24;

}  // namespace

ForwardPass::ForwardPass(const ModelParts& parts)
    : weights_(parts.weights),
      levels_(parts.levels),
      info_(parts.info),
      kernels_(parts.kernels),
      pool_(parts.pool),
      geometry_(parts.geometry),
      forms_(parts.forms),
      layer_tap_(parts.layer_tap),
      max_piece_rows_(parts.max_piece_rows),
      steps_(parts.pool.NewList()) {}

absl::Status ForwardPass::Start(const Batch& batch, float* logits) {
  WITHY_RETURN_IF_ERROR(CheckBatch(batch, info_));
  batch_ = batch;
  WITHY_RETURN_IF_ERROR(CheckBlocks());
  logits_ = logits;
  plan_.clear();
  end_row_ = logits_rows_ = 0;
  listed_layer_ = next_layer_ = info_.layers;
  return absl::OkStatus();
}

bool ForwardPass::Run(const std::atomic<bool>* stop, double until) {
  do {
    if (!pool_.Run(steps_, stop, StepsUntil(until))) return false;
  } while (AddMore());
  return true;
}

double ForwardPass::Done() const {
  if (steps_.empty()) return DoneWith(next_layer_);
  const int done = steps_.steps_done();
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), done);
  if (end == ends_.end()) return DoneWith(next_layer_);
  const int begin = end == ends_.begin() ? 0 : *(end - 1);
  return DoneWith(listed_layer_ + static_cast<double>(end - ends_.begin()) +
                  static_cast<double>(done - begin) / (*end - begin));
}

double ForwardPass::DoneWith(double layers) const {
  if (plan_.empty()) return 0;
  const auto rows = static_cast<double>(batch_.rows.size());
  const auto piece = static_cast<double>(plan_.size());
  const auto whole = static_cast<size_t>(layers);
  double share = share_before_[whole];
  if (whole < static_cast<size_t>(info_.layers)) {
    share += (share_before_[whole + 1] - share) * (layers - static_cast<double>(whole));
  }
  return (end_row_ - piece + piece * share) / rows;
}

int ForwardPass::StepsUntil(double until) const {
  if (until >= 1) return StepList::kMaxSteps;
  if (DoneWith(listed_layer_) >= until) return 0;
  for (size_t i = 0; i < ends_.size(); ++i) {
    if (DoneWith(listed_layer_ + static_cast<double>(i + 1)) >= until) return ends_[i];
  }
  return StepList::kMaxSteps;
}

// Writes down what comes next, as far as there is room; false when nothing does.
bool ForwardPass::AddMore() {
  if (next_layer_ == info_.layers) {
    if (!PlanNextPiece()) return false;
    AddEmbed();
  }
  listed_layer_ = next_layer_;
  ends_.clear();
  while (next_layer_ < info_.layers && steps_.room() >= kMaxLayerSteps) {
    AddLayer(next_layer_++);
    ends_.push_back(steps_.steps());
  }
  return true;
}

bool ForwardPass::PlanNextPiece() {
  for (const PlannedRow& row : plan_) logits_rows_ += row.logits_row >= 0 ? 1 : 0;
  const auto rows = static_cast<int32_t>(batch_.rows.size());
  if (end_row_ == rows) return false;
  const int32_t begin = end_row_;
  end_row_ = std::min(rows, begin + max_piece_rows_);
  next_layer_ = 0;
  plan_ = PlanPiece(batch_, info_, begin, end_row_, logits_rows_);
  Reserve();
  PlanAttention();
  PlanExtents();
  PlanLora();
  PlanShares();
  return true;
}

void ForwardPass::AddLayer(int32_t layer) {
  const bool last = layer + 1 == info_.layers;
  AddQkv(layer);
  AddStoreKv(layer);
  if (last && wanted_.empty()) return;
  if (last) AddKeepWanted();
  if (ComputesAttention(layer)) AddAttention(layer);
  if (ComputesMlp(layer)) AddFeedForward(layer);
  if (layer_tap_) AddTap(layer);
  if (last) AddLogits();
}

// Every block that a row reads or writes must be there.
absl::Status ForwardPass::CheckBlocks() const {
  const auto layers = static_cast<size_t>(info_.layers);
  const auto chunks_up_to = [](int32_t slot) {
    return static_cast<size_t>(slot / kChunkTokens) + 1;
  };
  std::vector<size_t> needed(batch_.contexts.size(), 0);
  for (const Row& row : batch_.rows) {
    size_t& chunks = needed[static_cast<size_t>(row.context)];
    const int32_t linear = row.position - static_cast<int32_t>(row.ancestor_slots.size());
    chunks = std::max(chunks, chunks_up_to(row.slot));
    if (linear > 0) chunks = std::max(chunks, chunks_up_to(linear - 1));
    for (int32_t slot : row.ancestor_slots) chunks = std::max(chunks, chunks_up_to(slot));
  }
  for (size_t c = 0; c < needed.size(); ++c) {
    const auto blocks = batch_.contexts[c].blocks.first(needed[c] * layers);
    const auto gap = std::find(blocks.begin(), blocks.end(), nullptr);
    if (gap == blocks.end()) continue;
    const auto at = static_cast<size_t>(gap - blocks.begin());
    return absl::InvalidArgumentError(absl::StrCat("context ", c, " has no block for chunk ",
                                                   at / layers, ", layer ", at % layers));
  }
  return absl::OkStatus();
}

// Buffers for the rows of plan_.
void ForwardPass::Reserve() {
  const size_t n = plan_.size();
  const auto rows = static_cast<int>(n);
  const ModelShape& s = weights_.shape;
  const auto floats = [&](AlignedArray<float>* array, int32_t width) {
    array->Resize(n * static_cast<size_t>(Stride(width)));
  };
  floats(&x_, s.d_model);
  floats(&q_, s.q_rows());
  floats(&attended_, s.q_rows());
  floats(&k_, s.kv_rows());
  floats(&v_, s.kv_rows());
  floats(&gate_, std::max(s.d_ff, s.d_model));
  floats(&up_, s.d_ff);
  floats(&angles_, 2 * s.head_dim);
  input_.Reset(rows, s.d_model, forms_.input);
  attention_input_.Reset(rows, s.q_rows(), forms_.attention);
  neurons_.Reset(rows, s.d_ff, forms_.neurons);
  head_input_.Reset(rows, s.d_model, forms_.head);
  wanted_.clear();
  int32_t tail_blocks = 0;
  for (int32_t i = 0; i < rows; ++i) {
    const PlannedRow& planned = Planned(i);
    if (planned.logits_row >= 0) wanted_.push_back(i);
    tail_blocks += planned.tail_blocks;
  }
  tail_bytes_.Resize(static_cast<size_t>(tail_blocks) * geometry_.BlockBytes());
  tail_pointers_.resize(static_cast<size_t>(tail_blocks));
  for (size_t i = 0; i < tail_pointers_.size(); ++i) {
    tail_pointers_[i] = tail_bytes_.data() + i * geometry_.BlockBytes();
  }
}

// What each row sees in each layer.
void ForwardPass::PlanAttention() {
  attention_rows_.clear();
  const auto add = [&](int32_t layer, const PlannedRow& planned) {
    AttentionRow row{
        .blocks = batch_.contexts[static_cast<size_t>(planned.row->context)].blocks.data() + layer,
        .block_stride = info_.layers,
        .visible = planned.row->position + 1};
    if (planned.tail_group >= 0) {
      row.tail = tail_pointers_.data() + planned.tail_first;
      row.tail_group = planned.tail_group;
    }
    attention_rows_.push_back(row);
  };
  for (int32_t layer = 0; layer + 1 < info_.layers; ++layer) {
    for (const PlannedRow& planned : plan_) add(layer, planned);
  }
  for (int32_t i : wanted_) add(info_.layers - 1, Planned(i));
}

// What each row computes of each layer; rows are sorted so that extents never grow.
void ForwardPass::PlanExtents() {
  const auto full = static_cast<int32_t>(levels_.size()) - 1;
  uniform_ = std::all_of(plan_.begin(), plan_.end(), [&](const PlannedRow& planned) {
    return planned.level == full && (planned.seen_level == full || !weights_.shape.cuts_kv_heads());
  });
  narrowed_ = false;
  if (uniform_) return;
  const auto add = [&](Extents* to, int32_t layer, const PlannedRow& planned) {
    const auto extent_at = [&](int32_t level) {
      return levels_[static_cast<size_t>(level)].layers[static_cast<size_t>(layer)];
    };
    const LayerExtent extent = extent_at(planned.level);
    const ModelShape& s = weights_.shape;
    const int32_t heads = s.cuts_kv_heads() ? extent_at(planned.seen_level).heads : extent.heads;
    narrowed_ = narrowed_ || heads < extent.heads;
    to->heads.push_back(heads);
    to->q_rows.push_back(extent.heads * s.head_dim);
    to->kv_rows.push_back(s.kv_heads_of(extent.heads) * s.head_dim);
    to->neurons.push_back(extent.neurons);
  };
  extents_.assign(static_cast<size_t>(info_.layers), {});
  wanted_extents_ = {};
  for (int32_t layer = 0; layer < info_.layers; ++layer) {
    for (const PlannedRow& planned : plan_)
      add(&extents_[static_cast<size_t>(layer)], layer, planned);
  }
  for (int32_t i : wanted_) add(&wanted_extents_, info_.layers - 1, Planned(i));
}

void ForwardPass::PlanShares() {
  constexpr double kNorms = 2;  // in terms of d_model, as all of this, of every layer
  const ModelShape& s = weights_.shape;
  std::vector<double> rows(levels_.size());
  std::vector<double> wanted(levels_.size());
  for (const PlannedRow& planned : plan_) ++rows[static_cast<size_t>(planned.level)];
  for (const int32_t i : wanted_) ++wanted[static_cast<size_t>(Planned(i).level)];
  share_before_.assign(1, 0);
  for (int32_t layer = 0; layer < info_.layers; ++layer) {
    const bool last = layer + 1 == info_.layers;
    double work = share_before_.back();
    for (size_t level = 0; level < levels_.size(); ++level) {
      if (rows[level] == 0) continue;
      const LayerExtent& extent = levels_[level].layers[static_cast<size_t>(layer)];
      const double kv = 2.0 * s.head_dim * s.kv_heads_of(extent.heads);
      const double rest = LayerParameters(s, extent) - kv + (last ? s.vocab_size : 0);
      work += rows[level] * (kv + kNorms) + (last ? wanted[level] : rows[level]) * rest;
    }
    share_before_.push_back(work);
  }
  for (double& share : share_before_) share /= share_before_.back();
}

void ForwardPass::AddEmbed() {
  steps_.Add(Rows(), kPieceRows, [this](int begin, int end) {
    const ModelShape& s = weights_.shape;
    for (int i = begin; i < end; ++i) {
      const Row& row = *Planned(i).row;
      UnpackRow(weights_.embedding, row.token, x_.data() + i * Stride(s.d_model));
      RopeAngles(s.rope_frequencies, row.position, Interleaved(s),
                 angles_.data() + i * Stride(2 * s.head_dim));
    }
  });
}

MatMulArgs ForwardPass::Product(const PackedMatrix& w, const Activations& x, int32_t rows, float* y,
                                ptrdiff_t y_stride) const {
  MatMulArgs args;
  args.w = w;
  args.x = &x;
  args.rows = rows;
  args.y = y;
  args.y_stride = y_stride;
  return args;
}

// The normed residual stream, for Q, K and V (in = kAttentionIn) or for gate and up (kFfnIn). What
// the LoRA of the product before adds to the stream comes first, the A of the products that follow
// last: so that only down's A needs a step of its own.
void ForwardPass::AddInput(int32_t layer, LoraPart in) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelShape& s = weights_.shape;
  const bool ffn = in == LoraPart::kFfnIn;
  const float* norm = ffn ? w.ffn_norm : w.attn_norm;
  const int32_t rows = ffn ? RowsAfterKv(layer) : Rows();
  if (!lora_) {
    AddNormAndPrepareRows(steps_, kernels_, x_.data(), Stride(s.d_model), rows, norm, s.rms_epsilon,
                          &input_);
    return;
  }
  steps_.Add(rows, kLoraPieceRows, [this, layer, in, ffn, norm](int begin, int end) {
    const ptrdiff_t stride = Stride(weights_.shape.d_model);
    float* x = x_.data() + begin * stride;
    if (ffn) {
      AddLoraToResidual(layer, LoraPart::kAttentionOut, begin, end, x, stride);
    } else if (layer > 0) {
      AddLastLora(layer - 1, begin, end, x, stride);
    }
    for (int i = begin; i < end; ++i, x += stride) {
      NormAndPrepareRow(kernels_, x, norm, weights_.shape.rms_epsilon, i, &input_);
    }
    if (ffn) ComputeLoraIn(layer, in, begin, end);
  });
}

void ForwardPass::AddQkv(int32_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelShape& s = weights_.shape;
  AddInput(layer, LoraPart::kAttentionIn);
  std::array<MatMulArgs, 3> products = {
      Product(w.k, input_, Rows(), k_.data(), Stride(s.kv_rows())),
      Product(w.v, input_, Rows(), v_.data(), Stride(s.kv_rows())),
      Product(w.q, input_, Rows(), q_.data(), Stride(s.q_rows()))};
  MatMulArgs& q = products[2];
  if (!uniform_) {
    const Extents& extents = extents_[static_cast<size_t>(layer)];
    q.n_out_extent = extents.q_rows.data();
    if (s.cuts_kv_heads()) {
      products[0].n_out_extent = products[1].n_out_extent = extents.kv_rows.data();
    }
  }
  if (layer + 1 == info_.layers) {  // the last layer goes on for wanted rows only
    const int32_t first = wanted_.empty() ? 0 : wanted_.front();
    q.x_row = first;
    q.rows = wanted_.empty() ? 0 : wanted_.back() + 1 - first;
    q.y += first * q.y_stride;
    if (!uniform_) q.n_out_extent += first;
  }
  const bool queries = q.rows > 0 && ComputesAttention(layer);
  AddMatMuls(steps_, kernels_, std::span(products).first(queries ? 3 : 2),
             LoraProducts(layer, LoraPart::kAttentionIn));
}

// Bias, QK norm and RoPE; K and V into their slots; Q into the order of attention; then the tails
// of tree rows.
void ForwardPass::AddStoreKv(int32_t layer) {
  steps_.Add(Rows(), lora_ ? kLoraPieceRows : kPieceRows, [this, layer](int begin, int end) {
    const bool last = layer + 1 == info_.layers;
    if (lora_) AddLoraToQkv(layer, begin, end);
    for (int i = begin; i < end; ++i) {
      StoreKey(layer, i);
      if (!last || Planned(i).logits_row >= 0) TurnQuery(layer, i);
    }
  });
  if (tail_pointers_.empty()) return;
  steps_.Add(Rows(), kPieceRows, [this, layer](int begin, int end) {
    for (int i = begin; i < end; ++i) GatherTail(layer, i);
  });
}

void ForwardPass::NormHeads(float* heads, int32_t count, const float* weight) const {
  if (weight == nullptr) return;
  const ModelShape& s = weights_.shape;
  for (int32_t h = 0; h < count; ++h) {
    float* head = heads + h * s.head_dim;
    kernels_.rms_norm(head, weight, s.rms_epsilon, s.head_dim, head);
  }
}

std::byte* ForwardPass::BlockOf(int32_t layer, const PlannedRow& planned, int32_t slot) const {
  const auto chunk = static_cast<size_t>(slot / kChunkTokens);
  return batch_.contexts[static_cast<size_t>(planned.row->context)]
      .blocks[chunk * static_cast<size_t>(info_.layers) + static_cast<size_t>(layer)];
}

void ForwardPass::StoreKey(int32_t layer, int32_t i) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelShape& s = weights_.shape;
  float* k = k_.data() + i * Stride(s.kv_rows());
  float* v = v_.data() + i * Stride(s.kv_rows());
  const int32_t rows =
      uniform_ ? s.kv_rows() : extents_[static_cast<size_t>(layer)].kv_rows[static_cast<size_t>(i)];
  const int32_t heads = rows / s.head_dim;
  std::fill(k + rows, k + s.kv_rows(), 0.0f);
  std::fill(v + rows, v + s.kv_rows(), 0.0f);
  if (w.k_bias != nullptr) kernels_.add(w.k_bias, rows, k);
  if (w.v_bias != nullptr) kernels_.add(w.v_bias, rows, v);
  NormHeads(k, heads, w.k_norm);
  kernels_.rope(k, heads, s.head_dim, angles_.data() + i * Stride(2 * s.head_dim), s.head_dim,
                Interleaved(s));
  const PlannedRow& planned = Planned(i);
  const int32_t slot = planned.row->slot;
  kernels_.write_kv(geometry_, k, v, BlockOf(layer, planned, slot), slot % kChunkTokens);
}

void ForwardPass::TurnQuery(int32_t layer, int32_t i) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelShape& s = weights_.shape;
  float* q = q_.data() + i * Stride(s.q_rows());
  const int32_t heads =
      uniform_ ? s.heads
               : extents_[static_cast<size_t>(layer)].q_rows[static_cast<size_t>(i)] / s.head_dim;
  if (w.q_bias != nullptr) kernels_.add(w.q_bias, heads * s.head_dim, q);
  NormHeads(q, heads, w.q_norm);
  kernels_.rope(q, heads, s.head_dim, angles_.data() + i * Stride(2 * s.head_dim), s.head_dim,
                Interleaved(s));
}

// Copies the keys that do not lie where their position says into the row's scratch blocks.
void ForwardPass::GatherTail(int32_t layer, int32_t i) {
  const PlannedRow& planned = Planned(i);
  if (planned.tail_group < 0) return;
  std::byte* const* tail = tail_pointers_.data() + planned.tail_first;
  const int32_t begin = planned.tail_group * kChunkTokens;
  for (int32_t p = begin; p <= planned.row->position; ++p) {
    const int32_t slot = planned.SlotAt(p);
    CopyToken(geometry_, BlockOf(layer, planned, slot), slot % kChunkTokens,
              tail[(p - begin) / kChunkTokens], p % kChunkTokens);
  }
}

// After the last layer's K and V are stored, only rows that want logits go on, at the front.
void ForwardPass::AddKeepWanted() {
  if (wanted_.size() == plan_.size()) return;
  steps_.Add(1, 1, [this](int, int) {
    const ModelShape& s = weights_.shape;
    for (size_t kept = 0; kept < wanted_.size(); ++kept) {
      const auto i = static_cast<size_t>(wanted_[kept]);
      if (i == kept) continue;
      const auto move = [&](AlignedArray<float>* array, int32_t width) {
        const auto stride = static_cast<size_t>(Stride(width));
        std::memcpy(array->data() + kept * stride, array->data() + i * stride,
                    sizeof(float) * static_cast<size_t>(width));
      };
      move(&x_, s.d_model);
      move(&q_, s.q_rows());
    }
  });
}

int32_t ForwardPass::RowsAfterKv(int32_t layer) const {
  return layer + 1 == info_.layers ? static_cast<int32_t>(wanted_.size()) : Rows();
}

const ForwardPass::Extents& ForwardPass::ExtentsAfterKv(int32_t layer) const {
  return layer + 1 == info_.layers ? wanted_extents_ : extents_[static_cast<size_t>(layer)];
}

bool ForwardPass::ComputesAttention(int32_t layer) const {
  return uniform_ || ExtentsAfterKv(layer).q_rows.front() > 0;
}

bool ForwardPass::ComputesMlp(int32_t layer) const {
  return uniform_ || ExtentsAfterKv(layer).neurons.front() > 0;
}

// Heads that a row's level has and its context lacks: O reads nothing of them.
void ForwardPass::AddClearHeads(int32_t layer) {
  if (!narrowed_) return;
  steps_.Add(RowsAfterKv(layer), kPieceRows, [this, layer](int begin, int end) {
    const ModelShape& s = weights_.shape;
    const Extents& extents = ExtentsAfterKv(layer);
    for (int i = begin; i < end; ++i) {
      float* row = attended_.data() + i * Stride(s.q_rows());
      const auto at = static_cast<size_t>(i);
      std::fill(row + extents.heads[at] * s.head_dim, row + extents.q_rows[at], 0.0f);
    }
  });
}

void ForwardPass::AddAttention(int32_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelShape& s = weights_.shape;
  const int32_t rows = RowsAfterKv(layer);
  AttentionArgs args;
  args.geometry = geometry_;
  args.q_heads = s.heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  args.rows = rows;
  args.row = attention_rows_.data() + static_cast<size_t>(layer) * plan_.size();
  args.q = q_.data();
  args.q_stride = Stride(s.q_rows());
  args.out = attended_.data();
  args.out_stride = Stride(s.q_rows());
  args.rank_major = !s.cuts_kv_heads();
  if (!uniform_) args.head_extent = ExtentsAfterKv(layer).heads.data();
  AddAttend(steps_, kernels_, args);
  AddClearHeads(layer);
  AddPrepareRows(steps_, kernels_, attended_.data(), Stride(s.q_rows()), rows, &attention_input_,
                 uniform_ ? nullptr : ExtentsAfterKv(layer).q_rows.data());
  MatMulArgs product = Product(w.output, attention_input_, rows, x_.data(), Stride(s.d_model));
  product.accumulate = true;
  if (!uniform_) product.n_in_extent = ExtentsAfterKv(layer).q_rows.data();
  AddMatMuls(steps_, kernels_, {&product, 1}, LoraProducts(layer, LoraPart::kAttentionOutIn));
}

void ForwardPass::AddFeedForward(int32_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelShape& s = weights_.shape;
  const int32_t rows = RowsAfterKv(layer);
  AddInput(layer, LoraPart::kFfnIn);
  MatMulArgs gate = Product(w.gate, input_, rows, gate_.data(), Stride(s.d_ff));
  MatMulArgs up = Product(w.up, input_, rows, up_.data(), Stride(s.d_ff));
  MatMulArgs down = Product(w.down, neurons_, rows, x_.data(), Stride(s.d_model));
  down.accumulate = true;
  if (!uniform_) {
    const int* neurons = ExtentsAfterKv(layer).neurons.data();
    gate.n_out_extent = up.n_out_extent = down.n_in_extent = neurons;
  }
  std::span<const GateUpLowRank> low_rank;
  if (lora_) {
    const size_t first = gate_up_first_[static_cast<size_t>(layer)];
    low_rank = std::span(gate_up_lora_)
                   .subspan(first, gate_up_first_[static_cast<size_t>(layer) + 1] - first);
  }
  AddGateUp(steps_, kernels_, gate, up, &neurons_, low_rank);
  AddMatMuls(steps_, kernels_, {&down, 1}, LoraProducts(layer, LoraPart::kDownIn));
}

void ForwardPass::AddTap(int32_t layer) {
  steps_.Add(1, 1, [this, layer](int, int) {
    const ModelShape& s = weights_.shape;
    std::vector<float> hidden;
    for (int32_t i = 0; i < RowsAfterKv(layer); ++i) {
      const float* x = x_.data() + i * Stride(s.d_model);
      hidden.insert(hidden.end(), x, x + s.d_model);
      float* row = hidden.data() + hidden.size() - static_cast<size_t>(s.d_model);
      if (lora_) AddLastLora(layer, i, i + 1, row, s.d_model);
    }
    layer_tap_(layer, hidden);
  });
}

// Final norm and output head of the rows that want logits, put into the caller's order first.
void ForwardPass::AddLogits() {
  const ModelShape& s = weights_.shape;
  int32_t first = Planned(wanted_.front()).logits_row;
  for (int32_t i : wanted_) first = std::min(first, Planned(i).logits_row);
  const auto rows = static_cast<int32_t>(wanted_.size());
  steps_.Add(1, 1, [this, first](int, int) {
    const auto width = static_cast<size_t>(weights_.shape.d_model);
    const auto stride = static_cast<size_t>(Stride(weights_.shape.d_model));
    if (lora_) {
      AddLastLora(info_.layers - 1, 0, static_cast<int32_t>(wanted_.size()), x_.data(),
                  static_cast<ptrdiff_t>(stride));
    }
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const auto place = static_cast<size_t>(Planned(wanted_[i]).logits_row - first);
      std::memcpy(gate_.data() + place * stride, x_.data() + i * stride, sizeof(float) * width);
    }
  });
  AddNormAndPrepareRows(steps_, kernels_, gate_.data(), Stride(s.d_model), rows,
                        weights_.output_norm, s.rms_epsilon, &head_input_);
  const MatMulArgs product = Product(weights_.head, head_input_, rows,
                                     logits_ + int64_t{first} * s.vocab_size, s.vocab_size);
  AddMatMuls(steps_, kernels_, {&product, 1});
}

}  // namespace withy::engine
