// Model over a packed file: the forward pass of llama, qwen2 and qwen3, piece by piece.
// Neighbours: rows.h plans, layers.h holds weights, kernels/parallel.h computes. Source: DESIGN 4,
// One forward.
#include "engine/model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "engine/kernels/aligned.h"
#include "engine/kernels/parallel.h"

namespace withy::engine {
namespace {

constexpr ptrdiff_t kStridePad = 16;  // keeps equal columns of many rows out of one cache set

ptrdiff_t Stride(int32_t n) { return n + kStridePad; }

}  // namespace

PackedModel::PackedModel(std::unique_ptr<PackedFile> file, ModelWeights weights,
                         std::unique_ptr<ThreadPool> pool, const Kernels& kernels,
                         const ModelOptions& options)
    : file_(std::move(file)),
      weights_(std::move(weights)),
      pool_(std::move(pool)),
      kernels_(kernels),
      levels_(options.levels),
      layer_tap_(options.layer_tap),
      max_piece_rows_(options.max_piece_rows),
      info_(DescribeModel(*file_, weights_, levels_)),
      geometry_{.layers = info_.layers, .kv_heads = info_.kv_heads, .head_dim = info_.head_dim} {
  LevelSpec full{.percent = 100};
  full.layers.assign(static_cast<size_t>(info_.layers), LayerExtent{info_.heads, info_.d_ff});
  levels_.push_back(std::move(full));
}

absl::Status PackedModel::Forward(const Batch& batch, float* logits,
                                  const std::atomic<bool>* cancel) {
  WITHY_RETURN_IF_ERROR(CheckBatch(batch, info_));
  const auto rows = static_cast<int32_t>(batch.rows.size());
  int32_t logits_rows = 0;
  for (int32_t begin = 0; begin < rows; begin += max_piece_rows_) {
    const int32_t end = std::min(rows, begin + max_piece_rows_);
    plan_ = PlanPiece(batch, info_, begin, end, logits_rows);
    WITHY_RETURN_IF_ERROR(RunPiece(batch, logits, cancel));
    for (const PlannedRow& row : plan_) logits_rows += row.logits_row >= 0 ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::Status PackedModel::RunPiece(const Batch& batch, float* logits,
                                   const std::atomic<bool>* cancel) {
  Reserve();
  Embed();
  for (int32_t layer = 0; layer < info_.layers; ++layer) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return absl::CancelledError(absl::StrCat("cancelled before layer ", layer));
    }
    WITHY_RETURN_IF_ERROR(GatherBlocks(batch, layer));
    SetExtents(layer);
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    ProjectQkv(layer, weights);
    StoreKv(layer, weights);
    if (layer + 1 == info_.layers) KeepWantedRows();
    if (active_.empty()) break;
    Attention(weights);
    FeedForward(weights);
    if (layer_tap_) Tap(layer);
  }
  if (!active_.empty()) Logits(logits);
  return absl::OkStatus();
}

// Buffers for the rows of plan_, all of which become active.
void PackedModel::Reserve() {
  const size_t n = plan_.size();
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
  floats(&angles_, s.head_dim);
  active_.resize(n);
  uniform_ = true;
  int32_t tail_blocks = 0;
  for (size_t i = 0; i < n; ++i) {
    active_[i] = static_cast<int32_t>(i);
    if (plan_[i].level != static_cast<int32_t>(levels_.size()) - 1) uniform_ = false;
    tail_blocks += plan_[i].tail_blocks;
  }
  tail_bytes_.Resize(static_cast<size_t>(tail_blocks) * geometry_.BlockBytes());
  tail_pointers_.resize(static_cast<size_t>(tail_blocks));
  for (size_t i = 0; i < tail_pointers_.size(); ++i) {
    tail_pointers_[i] = tail_bytes_.data() + i * geometry_.BlockBytes();
  }
}

// Token embeddings into the residual stream; RoPE angles of every row.
void PackedModel::Embed() {
  const ModelShape& s = weights_.shape;
  pool_->ParallelFor(ActiveRows(), 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const Row& row = *plan_[static_cast<size_t>(i)].row;
      UnpackRow(weights_.embedding, row.token, x_.data() + i * Stride(s.d_model));
      RopeAngles(s.rope_frequencies, row.position, angles_.data() + i * Stride(s.head_dim));
    }
  });
}

// This layer's blocks of every context, side by side as attention reads them.
absl::Status PackedModel::GatherBlocks(const Batch& batch, int32_t layer) {
  const auto layers = static_cast<size_t>(info_.layers);
  context_blocks_.resize(batch.contexts.size());
  std::vector<size_t>& needed = chunks_needed_;
  needed.assign(batch.contexts.size(), 0);
  for (const PlannedRow& planned : plan_) {
    size_t& chunks = needed[static_cast<size_t>(planned.row->context)];
    const auto chunk_of = [](int32_t slot) { return static_cast<size_t>(slot / kChunkTokens); };
    const Row& row = *planned.row;
    const int32_t linear = row.position - static_cast<int32_t>(row.ancestor_slots.size());
    chunks = std::max(chunks, chunk_of(row.slot) + 1);
    if (linear > 0) chunks = std::max(chunks, chunk_of(linear - 1) + 1);
    for (int32_t slot : row.ancestor_slots) chunks = std::max(chunks, chunk_of(slot) + 1);
  }
  for (size_t c = 0; c < needed.size(); ++c) {
    std::vector<std::byte*>& blocks = context_blocks_[c];
    blocks.resize(needed[c]);
    for (size_t chunk = 0; chunk < needed[c]; ++chunk) {
      blocks[chunk] = batch.contexts[c].blocks[chunk * layers + static_cast<size_t>(layer)];
      if (blocks[chunk] == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("context ", c, " has no block for chunk ", chunk, ", layer ", layer));
      }
    }
  }
  return absl::OkStatus();
}

// What each active row computes of this layer; rows are sorted so that extents never grow.
void PackedModel::SetExtents(int32_t layer) {
  if (uniform_) return;
  const ModelShape& s = weights_.shape;
  const size_t n = active_.size();
  head_extent_.resize(n);
  q_extent_.resize(n);
  neuron_extent_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const auto level = static_cast<size_t>(Planned(i).level);
    const LayerExtent& extent = levels_[level].layers[static_cast<size_t>(layer)];
    head_extent_[i] = extent.heads;
    q_extent_[i] = extent.heads * s.head_dim;
    neuron_extent_[i] = extent.neurons;
  }
}

MatMulArgs PackedModel::Product(const PackedMatrix& w, const Activations& x, float* y,
                                ptrdiff_t y_stride) const {
  MatMulArgs args;
  args.w = w;
  args.x = &x;
  args.rows = ActiveRows();
  args.y = y;
  args.y_stride = y_stride;
  return args;
}

void PackedModel::ProjectQkv(int32_t layer, const LayerWeights& w) {
  const ModelShape& s = weights_.shape;
  const unsigned forms = FormFor(w.q.type) | FormFor(w.k.type) | FormFor(w.v.type);
  NormAndPrepareRows(*pool_, kernels_, x_.data(), Stride(s.d_model), ActiveRows(), s.d_model,
                     w.attn_norm, s.rms_epsilon, forms, &input_);
  std::array<MatMulArgs, 3> products = {Product(w.k, input_, k_.data(), Stride(s.kv_rows())),
                                        Product(w.v, input_, v_.data(), Stride(s.kv_rows())),
                                        Product(w.q, input_, q_.data(), Stride(s.q_rows()))};
  MatMulArgs& q = products[2];
  if (!uniform_) q.n_out_extent = q_extent_.data();
  if (layer + 1 == info_.layers) {  // the last layer goes on for wanted rows only
    const auto [first, last] = WantedRange();
    q.x_row = first;
    q.rows = last - first;
    q.y += first * q.y_stride;
    if (!uniform_) q.n_out_extent += first;
  }
  MatMuls(*pool_, kernels_, std::span(products).first(q.rows > 0 ? 3 : 2));
}

std::pair<int32_t, int32_t> PackedModel::WantedRange() const {
  int32_t first = 0;
  int32_t last = 0;
  for (int32_t i = 0; i < ActiveRows(); ++i) {
    if (Planned(static_cast<size_t>(i)).logits_row < 0) continue;
    if (last == 0) first = i;
    last = i + 1;
  }
  return {first, last};
}

// Bias, QK norm and RoPE; K and V into their slots; Q into the order of attention; then the tails
// of tree rows.
void PackedModel::StoreKv(int32_t layer, const LayerWeights& w) {
  const bool last = layer + 1 == info_.layers;
  pool_->ParallelFor(ActiveRows(), 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      StoreKey(i, w);
      if (!last || Planned(static_cast<size_t>(i)).logits_row >= 0) TurnQuery(i, w);
    }
  });
  if (tail_pointers_.empty()) return;
  pool_->ParallelFor(ActiveRows(), 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) GatherTail(static_cast<size_t>(i));
  });
}

void PackedModel::NormHeads(float* heads, int32_t count, const float* weight) const {
  if (weight == nullptr) return;
  const ModelShape& s = weights_.shape;
  for (int32_t h = 0; h < count; ++h) {
    float* head = heads + h * s.head_dim;
    kernels_.rms_norm(head, weight, s.rms_epsilon, s.head_dim, head);
  }
}

void PackedModel::StoreKey(int32_t i, const LayerWeights& w) {
  const ModelShape& s = weights_.shape;
  float* k = k_.data() + i * Stride(s.kv_rows());
  float* v = v_.data() + i * Stride(s.kv_rows());
  if (w.k_bias != nullptr) kernels_.add(w.k_bias, s.kv_rows(), k);
  if (w.v_bias != nullptr) kernels_.add(w.v_bias, s.kv_rows(), v);
  NormHeads(k, s.kv_heads, w.k_norm);
  kernels_.rope(k, s.kv_heads, s.head_dim, angles_.data() + i * Stride(s.head_dim), s.head_dim,
                s.rope_pairing == RopePairing::kAdjacent);
  const Row& row = *Planned(static_cast<size_t>(i)).row;
  std::byte* block = context_blocks_[static_cast<size_t>(row.context)]
                                    [static_cast<size_t>(row.slot / kChunkTokens)];
  kernels_.write_kv(geometry_, k, v, block, row.slot % kChunkTokens);
}

void PackedModel::TurnQuery(int32_t i, const LayerWeights& w) {
  const ModelShape& s = weights_.shape;
  float* q = q_.data() + i * Stride(s.q_rows());
  const int32_t heads = uniform_ ? s.heads : head_extent_[static_cast<size_t>(i)];
  if (w.q_bias != nullptr) kernels_.add(w.q_bias, heads * s.head_dim, q);
  NormHeads(q, heads, w.q_norm);
  kernels_.rope(q, heads, s.head_dim, angles_.data() + i * Stride(s.head_dim), s.head_dim,
                s.rope_pairing == RopePairing::kAdjacent);
}

// Copies the keys that do not lie where their position says into the row's scratch blocks.
void PackedModel::GatherTail(size_t i) {
  const PlannedRow& planned = Planned(i);
  if (planned.tail_group < 0) return;
  const auto& blocks = context_blocks_[static_cast<size_t>(planned.row->context)];
  std::byte* const* tail = tail_pointers_.data() + planned.tail_first;
  const int32_t begin = planned.tail_group * kChunkTokens;
  for (int32_t p = begin; p <= planned.row->position; ++p) {
    const int32_t slot = planned.SlotAt(p);
    CopyToken(geometry_, blocks[static_cast<size_t>(slot / kChunkTokens)], slot % kChunkTokens,
              tail[(p - begin) / kChunkTokens], p % kChunkTokens);
  }
}

// After the last layer's K and V are stored, only rows that want logits go on.
void PackedModel::KeepWantedRows() {
  const ModelShape& s = weights_.shape;
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (Planned(i).logits_row < 0) continue;
    if (kept != i) {
      const auto move = [&](AlignedArray<float>* array, int32_t width) {
        const auto stride = static_cast<size_t>(Stride(width));
        std::memcpy(array->data() + kept * stride, array->data() + i * stride,
                    sizeof(float) * static_cast<size_t>(width));
      };
      move(&x_, s.d_model);
      move(&q_, s.q_rows());
      if (!uniform_) {
        head_extent_[kept] = head_extent_[i];
        q_extent_[kept] = q_extent_[i];
        neuron_extent_[kept] = neuron_extent_[i];
      }
      active_[kept] = active_[i];
    }
    ++kept;
  }
  active_.resize(kept);
}

void PackedModel::Attention(const LayerWeights& w) {
  const ModelShape& s = weights_.shape;
  attention_rows_.resize(active_.size());
  for (size_t i = 0; i < active_.size(); ++i) {
    const PlannedRow& planned = Planned(i);
    AttentionRow& row = attention_rows_[i];
    row = {.blocks = context_blocks_[static_cast<size_t>(planned.row->context)].data(),
           .visible = planned.row->position + 1};
    if (planned.tail_group >= 0) {
      row.tail = tail_pointers_.data() + planned.tail_first;
      row.tail_group = planned.tail_group;
    }
  }
  AttentionArgs args;
  args.geometry = geometry_;
  args.q_heads = s.heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  args.rows = ActiveRows();
  args.row = attention_rows_.data();
  args.q = q_.data();
  args.q_stride = Stride(s.q_rows());
  args.out = attended_.data();
  args.out_stride = Stride(s.q_rows());
  args.rank_major = s.query_heads_per_group() >= 3;
  args.head_extent = uniform_ || !args.rank_major ? nullptr : head_extent_.data();
  Attend(*pool_, kernels_, args);
  PrepareRows(*pool_, kernels_, attended_.data(), Stride(s.q_rows()), ActiveRows(), s.q_rows(),
              FormFor(w.output.type), &attention_input_);
  MatMulArgs product = Product(w.output, attention_input_, x_.data(), Stride(s.d_model));
  product.accumulate = true;
  product.n_in_extent = uniform_ ? nullptr : q_extent_.data();
  MatMuls(*pool_, kernels_, {&product, 1});
}

void PackedModel::FeedForward(const LayerWeights& w) {
  const ModelShape& s = weights_.shape;
  NormAndPrepareRows(*pool_, kernels_, x_.data(), Stride(s.d_model), ActiveRows(), s.d_model,
                     w.ffn_norm, s.rms_epsilon, FormFor(w.gate.type) | FormFor(w.up.type), &input_);
  MatMulArgs gate = Product(w.gate, input_, gate_.data(), Stride(s.d_ff));
  MatMulArgs up = Product(w.up, input_, up_.data(), Stride(s.d_ff));
  if (!uniform_) gate.n_out_extent = up.n_out_extent = neuron_extent_.data();
  GateUp(*pool_, kernels_, gate, up, FormFor(w.down.type), &neurons_);
  MatMulArgs down = Product(w.down, neurons_, x_.data(), Stride(s.d_model));
  down.accumulate = true;
  if (!uniform_) down.n_in_extent = neuron_extent_.data();
  MatMuls(*pool_, kernels_, {&down, 1});
}

void PackedModel::Tap(int32_t layer) const {
  const ModelShape& s = weights_.shape;
  std::vector<float> hidden;
  for (int32_t i = 0; i < ActiveRows(); ++i) {
    const float* x = x_.data() + i * Stride(s.d_model);
    hidden.insert(hidden.end(), x, x + s.d_model);
  }
  layer_tap_(layer, hidden);
}

// Final norm and output head of the rows that want logits, put into the caller's order first.
void PackedModel::Logits(float* logits) {
  const ModelShape& s = weights_.shape;
  int32_t first = Planned(0).logits_row;
  for (size_t i = 0; i < active_.size(); ++i) first = std::min(first, Planned(i).logits_row);
  for (size_t i = 0; i < active_.size(); ++i) {
    const auto place = static_cast<size_t>(Planned(i).logits_row - first);
    std::memcpy(gate_.data() + place * static_cast<size_t>(Stride(s.d_model)),
                x_.data() + i * static_cast<size_t>(Stride(s.d_model)),
                sizeof(float) * static_cast<size_t>(s.d_model));
  }
  NormAndPrepareRows(*pool_, kernels_, gate_.data(), Stride(s.d_model), ActiveRows(), s.d_model,
                     weights_.output_norm, s.rms_epsilon, FormFor(weights_.head.type), &input_);
  const MatMulArgs product =
      Product(weights_.head, input_, logits + int64_t{first} * s.vocab_size, s.vocab_size);
  MatMuls(*pool_, kernels_, {&product, 1});
}

}  // namespace withy::engine
