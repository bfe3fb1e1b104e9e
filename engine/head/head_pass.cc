#include "engine/head/head_pass.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/cpu/parallel.h"

namespace withy::engine {
namespace {

constexpr PieceSize kPieceRows{1, 16};

MatMulArgs Product(const PackedMatrix& w, const Activations& x, int32_t rows, RowBuffer& y) {
  MatMulArgs args;
  args.w = w;
  args.x = &x;
  args.rows = rows;
  args.y = y.data();
  args.y_stride = y.stride();
  return args;
}

}  // namespace

HeadPass::HeadPass(const HeadShape& shape, const HeadWeights& weights, const Kernels& kernels,
                   ThreadPool& pool)
    : shape_(shape),
      weights_(weights),
      kernels_(kernels),
      pool_(pool),
      steps_(pool.NewList()),
      geometry_{.layers = 1, .kv_heads = shape.layer.kv_heads, .head_dim = shape.layer.head_dim} {}

double HeadPass::Done() const {
  return steps_.empty() ? 1 : static_cast<double>(steps_.steps_done()) / steps_.steps();
}

absl::Status HeadPass::Start(const Batch& batch, float* logits) {
  steps_.Clear();
  batch_ = batch;
  const auto rows = static_cast<int32_t>(batch.rows.size());
  PlanPiece(batch, /*full_level=*/0, 0, rows, /*first_logits=*/0, &rows_);
  wanted_.clear();
  for (int32_t i = 0; i < rows; ++i) {
    if (rows_[static_cast<size_t>(i)].logits_row >= 0) wanted_.push_back(i);
  }
  WITHY_RETURN_IF_ERROR(FindSources(batch));
  Resize(static_cast<size_t>(rows));
  Fuse();
  Enter();
  StoreKv();
  if (wanted() == 0) return absl::OkStatus();
  Attend();
  FeedForward();
  Logits(logits);
  return absl::OkStatus();
}

absl::Status HeadPass::FindSources(const Batch& batch) {
  sources_.assign(rows_.size(), {});
  featured_.clear();
  const auto parent_of = [](const Row& row) {
    return row.ancestor_slots.empty() ? row.position - 1 : row.ancestor_slots.back();
  };
  for (int32_t i = 0; i < count(); ++i) {
    const Row& row = *rows_[static_cast<size_t>(i)].row;
    Source& source = sources_[static_cast<size_t>(i)];
    const HeadStates& states = *ContextOf(rows_[static_cast<size_t>(i)]).head;
    source.features = states.FeaturesOf(row.position - 1);
    if (!source.features.empty()) {
      source.fused_row = static_cast<int32_t>(featured_.size());
      featured_.push_back(i);
    } else if (states.HiddenOf(parent_of(row)).empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "row ", i, ": nothing is known of the token before position ", row.position));
    }
  }
  // Making room moves what was there.
  for (const PlannedRow& planned : rows_) {
    HeadStates& states = *ContextOf(planned).head;
    if (planned.logits_row >= 0 && states.TakesDraft(planned.row->slot)) {
      states.RoomFor(planned.row->slot);
    }
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = *rows_[i].row;
    HeadStates& states = *batch.contexts[static_cast<size_t>(row.context)].head;
    if (sources_[i].features.empty()) sources_[i].hidden = states.HiddenOf(parent_of(row));
    if (rows_[i].logits_row >= 0 && states.TakesDraft(row.slot)) {
      sources_[i].leaves = states.RoomFor(row.slot).data();
    }
  }
  return absl::OkStatus();
}

void HeadPass::Resize(size_t rows) {
  const ModelShape& s = shape_.layer;
  const size_t wanted_rows = wanted_.size();
  const auto count = static_cast<int>(rows);
  if (shape_.norm_before_fc) normed_.Resize(featured_.size(), shape_.feature_width());
  fused_.Resize(featured_.size(), s.d_model);
  entering_.Resize(rows, 2 * s.d_model);
  x_.Resize(rows, s.d_model);
  q_.Resize(rows, s.q_rows());
  k_.Resize(rows, s.kv_rows());
  v_.Resize(rows, s.kv_rows());
  angles_.Resize(rows, 2 * s.rope_dims);
  feature_input_.Reset(static_cast<int>(featured_.size()), shape_.feature_width(),
                       FormFor(weights_.fc.type));
  input_.Reset(count, 2 * s.d_model,
               FormFor(weights_.q.type) | FormFor(weights_.k.type) | FormFor(weights_.v.type));
  wanted_x_.Resize(wanted_rows, s.d_model);
  wanted_q_.Resize(wanted_rows, s.q_rows());
  attended_.Resize(wanted_rows, s.q_rows());
  gate_.Resize(wanted_rows, s.d_ff);
  up_.Resize(wanted_rows, s.d_ff);
  draft_logits_.Resize(wanted_rows, shape_.draft_vocab);
  attention_input_.Reset(wanted(), s.q_rows(), FormFor(weights_.attention_out.type));
  ffn_input_.Reset(wanted(), s.d_model, FormFor(weights_.gate.type) | FormFor(weights_.up.type));
  neurons_.Reset(wanted(), s.d_ff, FormFor(weights_.down.type));
  head_input_.Reset(wanted(), s.d_model, FormFor(weights_.output.type));
  size_t tails = 0;
  for (const PlannedRow& planned : rows_) tails += static_cast<size_t>(planned.tail_blocks);
  tail_bytes_.Resize(tails * geometry_.BlockBytes());
  tails_.resize(tails);
  for (size_t i = 0; i < tails; ++i) tails_[i] = tail_bytes_.data() + i * geometry_.BlockBytes();
}

void HeadPass::Fuse() {
  const auto rows = static_cast<int32_t>(featured_.size());
  if (rows == 0) return;
  steps_.Add(rows, kPieceRows, [this](int begin, int end) {
    const int32_t width = shape_.feature_width();
    for (int j = begin; j < end; ++j) {
      const auto i = static_cast<size_t>(featured_[static_cast<size_t>(j)]);
      const float* features = sources_[i].features.data();
      if (weights_.feature_norm != nullptr) {
        kernels_.rms_norm(features, weights_.feature_norm, shape_.layer.rms_epsilon, width,
                          normed_.row(j));
        features = normed_.row(j);
      }
      kernels_.prepare(features, width, j, j + 1, 0, width, &feature_input_);
    }
  });
  const MatMulArgs fc = Product(weights_.fc, feature_input_, rows, fused_);
  AddMatMuls(steps_, kernels_, {&fc, 1});
}

void HeadPass::Enter() {
  steps_.Add(count(), kPieceRows, [this](int begin, int end) {
    for (int i = begin; i < end; ++i) EnterRow(i);
  });
  std::array<MatMulArgs, 3> products = {Product(weights_.k, input_, count(), k_),
                                        Product(weights_.v, input_, count(), v_),
                                        Product(weights_.q, input_, count(), q_)};
  AddMatMuls(steps_, kernels_, std::span(products).first(wanted() > 0 ? 3 : 2));
}

void HeadPass::EnterRow(int32_t i) {
  const ModelShape& s = shape_.layer;
  const Row& row = *rows_[static_cast<size_t>(i)].row;
  const Source& source = sources_[static_cast<size_t>(i)];
  const float* const state =
      source.fused_row >= 0 ? fused_.row(source.fused_row) : source.hidden.data();
  float* const embedding = entering_.row(i);
  float* const hidden = embedding + s.d_model;
  UnpackRow(weights_.embedding, row.token, embedding);
  kernels_.rms_norm(embedding, weights_.embedding_norm, s.rms_epsilon, s.d_model, embedding);
  kernels_.rms_norm(state, weights_.hidden_norm, s.rms_epsilon, s.d_model, hidden);
  std::memcpy(x_.row(i), shape_.norm_before_residual ? hidden : state,
              sizeof(float) * static_cast<size_t>(s.d_model));
  kernels_.prepare(embedding, entering_.stride(), i, i + 1, 0, 2 * s.d_model, &input_);
  RopeAngles(s.rope_frequencies, s.rope_scales[0], row.position,
             s.rope_pairing == RopePairing::kAdjacent, angles_.row(i));
}

void HeadPass::StoreKv() {
  steps_.Add(count(), kPieceRows, [this](int begin, int end) {
    for (int i = begin; i < end; ++i) StoreRow(i);
  });
  if (wanted() == 0 || tails_.empty()) return;
  steps_.Add(count(), kPieceRows, [this](int begin, int end) {
    for (int i = begin; i < end; ++i) CopyTail(i);
  });
}

// Writes the row's K and V. Of a row that wants logits, q and stream go on.
void HeadPass::StoreRow(int32_t i) {
  const ModelShape& s = shape_.layer;
  const bool adjacent = s.rope_pairing == RopePairing::kAdjacent;
  const PlannedRow& planned = rows_[static_cast<size_t>(i)];
  const ContextView& context = ContextOf(planned);
  const int32_t slot = planned.row->slot;
  const KvBlockName block = context.blocks[static_cast<size_t>(slot / kChunkTokens)];
  kernels_.rope(k_.row(i), s.kv_heads, s.head_dim, angles_.row(i), s.rope_dims, adjacent);
  kernels_.write_kv(geometry_, k_.row(i), v_.row(i), block.format, context.memory.At(block),
                    slot % kChunkTokens);
  if (planned.logits_row < 0) return;
  const int32_t w = planned.logits_row;
  kernels_.rope(q_.row(i), s.heads, s.head_dim, angles_.row(i), s.rope_dims, adjacent);
  std::memcpy(wanted_q_.row(w), q_.row(i), sizeof(float) * static_cast<size_t>(s.q_rows()));
  std::memcpy(wanted_x_.row(w), x_.row(i), sizeof(float) * static_cast<size_t>(s.d_model));
}

// Copies K and V that a tree row sees in scattered slots, as of a model's rows.
void HeadPass::CopyTail(int32_t i) {
  const PlannedRow& planned = rows_[static_cast<size_t>(i)];
  if (planned.tail_group < 0 || planned.logits_row < 0) return;
  const ContextView& context = ContextOf(planned);
  std::byte* const* const tail = tails_.data() + planned.tail_first;
  const int32_t begin = planned.tail_group * kChunkTokens;
  for (int32_t p = begin; p <= planned.row->position; ++p) {
    const int32_t slot = planned.SlotAt(p);
    const KvBlockName block = context.blocks[static_cast<size_t>(slot / kChunkTokens)];
    CopyToken(geometry_, context.memory.At(block), slot % kChunkTokens,
              tail[(p - begin) / kChunkTokens], p % kChunkTokens);
  }
}

void HeadPass::Attend() {
  const ModelShape& s = shape_.layer;
  attention_rows_.clear();
  for (const int32_t i : wanted_) {
    const PlannedRow& planned = rows_[static_cast<size_t>(i)];
    const ContextView& context = ContextOf(planned);
    AttentionRow row{.memory = context.memory.base,
                     .blocks = context.blocks.data(),
                     .visible = planned.row->position + 1,
                     .first = context.head->first()};
    if (planned.tail_group >= 0) {
      row.tail = tails_.data() + planned.tail_first;
      row.tail_group = planned.tail_group;
    }
    attention_rows_.push_back(row);
  }
  AttentionArgs args;
  args.geometry = geometry_;
  args.q_heads = s.heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  args.rows = wanted();
  args.row = attention_rows_.data();
  args.q = wanted_q_.data();
  args.q_stride = wanted_q_.stride();
  args.out = attended_.data();
  args.out_stride = attended_.stride();
  args.key_items = AttentionKeyItems(args, pool_.threads());
  if (args.key_items > 1) attention_parts_.Resize(AttentionPartFloats(args));
  args.parts = attention_parts_.data();
  AddAttend(steps_, kernels_, args);
  AddPrepareRows(steps_, kernels_, attended_.data(), attended_.stride(), wanted(),
                 &attention_input_);
  MatMulArgs out = Product(weights_.attention_out, attention_input_, wanted(), wanted_x_);
  out.accumulate = true;
  AddMatMuls(steps_, kernels_, {&out, 1});
}

void HeadPass::FeedForward() {
  AddNormAndPrepareRows(steps_, kernels_, wanted_x_.data(), wanted_x_.stride(), wanted(),
                        {.weight = weights_.ffn_norm, .epsilon = shape_.layer.rms_epsilon},
                        &ffn_input_);
  AddGateUp(steps_, kernels_, Product(weights_.gate, ffn_input_, wanted(), gate_),
            Product(weights_.up, ffn_input_, wanted(), up_), &neurons_);
  MatMulArgs down = Product(weights_.down, neurons_, wanted(), wanted_x_);
  down.accumulate = true;
  AddMatMuls(steps_, kernels_, {&down, 1});
  steps_.Add(wanted(), kPieceRows, [this](int begin, int end) {
    const auto width = static_cast<size_t>(shape_.layer.d_model);
    for (int w = begin; w < end; ++w) {
      float* const to = sources_[static_cast<size_t>(wanted_[static_cast<size_t>(w)])].leaves;
      if (to != nullptr) std::memcpy(to, wanted_x_.row(w), sizeof(float) * width);
    }
  });
}

void HeadPass::Logits(float* logits) {
  AddNormAndPrepareRows(steps_, kernels_, wanted_x_.data(), wanted_x_.stride(), wanted(),
                        {.weight = weights_.output_norm, .epsilon = shape_.layer.rms_epsilon},
                        &head_input_);
  MatMulArgs product = Product(weights_.output, head_input_, wanted(), draft_logits_);
  if (shape_.target_tokens.empty()) {
    product.y = logits;
    product.y_stride = shape_.layer.vocab_size;
  }
  AddMatMuls(steps_, kernels_, {&product, 1});
  if (shape_.target_tokens.empty()) return;
  steps_.Add(wanted(), PieceSize{1, 1}, [this, logits](int begin, int end) {
    for (int w = begin; w < end; ++w) Spread(w, logits);
  });
}

// To the target's tokens.
void HeadPass::Spread(int32_t w, float* logits) {
  const auto vocab = static_cast<size_t>(shape_.layer.vocab_size);
  float* const to = logits + static_cast<size_t>(w) * vocab;
  std::fill_n(to, vocab, -std::numeric_limits<float>::infinity());
  const float* const from = draft_logits_.row(w);
  for (size_t i = 0; i < shape_.target_tokens.size(); ++i) {
    to[static_cast<size_t>(shape_.target_tokens[i])] = from[i];
  }
}

}  // namespace withy::engine
