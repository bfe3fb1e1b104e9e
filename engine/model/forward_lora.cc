// What the LoRA of levels below the full one adds to a forward pass (docs/method-elastic.md,
// Recovery). Neighbours: forward.cc has the products that it rides beside.
#include <algorithm>
#include <array>
#include <utility>

#include "engine/model/forward.h"

namespace withy::engine {
namespace {

// A that is computed beside the product of the same inputs, since nothing reads it before.
constexpr std::array kProductParts = {LoraPart::kAttentionIn, LoraPart::kAttentionOutIn,
                                      LoraPart::kDownIn};

}  // namespace

// Room for the LoRA of rows that have one, and what it adds to their gate and up.
void ForwardPass::PlanLora() {
  lora_ = !uniform_ && !weights_.lora.empty();
  gate_up_lora_.clear();
  lora_products_.clear();
  if (!lora_) return;
  lora_in_.Resize(plan_.size() * LoraStride(weights_.lora_rank));
  gate_up_first_ = {0};
  lora_products_first_ = {0};
  for (int32_t layer = 0; layer < info_.layers; ++layer) {
    for (const LoraPart in : kProductParts) {
      ForLoraRuns(layer, in, 0, in == LoraPart::kAttentionIn ? Rows() : RowsAfterKv(layer),
                  [&](const LoraWeights& lora, int first, int n) {
                    lora_products_.push_back(LoraInProduct(lora, in, first, n));
                  });
      lora_products_first_.push_back(lora_products_.size());
    }
    ForLoraRuns(layer, LoraPart::kFfnIn, 0, RowsAfterKv(layer),
                [&](const LoraWeights& lora, int first, int n) {
                  gate_up_lora_.push_back({first, first + n, &lora.gate, &lora.up,
                                           LoraIn(first, LoraPart::kFfnIn),
                                           static_cast<ptrdiff_t>(LoraStride(weights_.lora_rank))});
                });
    gate_up_first_.push_back(gate_up_lora_.size());
  }
}

const LoraWeights* ForwardPass::LoraOf(int32_t layer, int32_t i, LoraPart part) const {
  const bool last = part != LoraPart::kAttentionIn && layer + 1 == info_.layers;
  const auto level = static_cast<size_t>(Planned(last ? wanted_[static_cast<size_t>(i)] : i).level);
  if (level >= weights_.lora.size()) return nullptr;  // the full model
  const LoraWeights& lora = weights_.lora[level][static_cast<size_t>(layer)];
  return (IsAttention(part) ? lora.attention : lora.mlp) ? &lora : nullptr;
}

const float* ForwardPass::LoraIn(int32_t i, LoraPart in) const {
  const auto rank = static_cast<size_t>(weights_.lora_rank);
  static constexpr std::array<size_t, 4> kPlace = {0, 3, 4, 6};  // of the A parts, in ranks
  return lora_in_.data() + static_cast<size_t>(i) * LoraStride(weights_.lora_rank) +
         kPlace[static_cast<size_t>(in)] * rank;
}

float* ForwardPass::LoraIn(int32_t i, LoraPart in) {
  return const_cast<float*>(std::as_const(*this).LoraIn(i, in));
}

template <typename Fn>
void ForwardPass::ForLoraRuns(int32_t layer, LoraPart part, int32_t begin, int32_t end,
                              Fn fn) const {
  for (int32_t i = begin; i < end;) {
    const LoraWeights* lora = LoraOf(layer, i, part);
    int32_t rows = 1;
    while (i + rows < end && LoraOf(layer, i + rows, part) == lora) ++rows;
    if (lora != nullptr) fn(*lora, i, rows);
    i += rows;
  }
}

MatMulArgs ForwardPass::LoraInProduct(const LoraWeights& lora, LoraPart in, int32_t first,
                                      int32_t rows) {
  const auto product = [&](const PackedMatrix& w, const Activations& inputs) {
    MatMulArgs args = Product(w, inputs, rows, LoraIn(first, in),
                              static_cast<ptrdiff_t>(LoraStride(weights_.lora_rank)));
    args.x_row = first;
    return args;
  };
  switch (in) {
    case LoraPart::kAttentionIn:
      return product(lora.attention_in, input_);
    case LoraPart::kAttentionOutIn:
      return product(lora.attention_out_in, attention_input_);
    case LoraPart::kFfnIn:
      return product(lora.ffn_in, input_);
    default:
      return product(lora.down_in, neurons_);
  }
}

std::span<const MatMulArgs> ForwardPass::LoraProducts(int32_t layer, LoraPart in) const {
  if (!lora_) return {};
  const auto part = std::find(kProductParts.begin(), kProductParts.end(), in);
  const size_t at = static_cast<size_t>(layer) * kProductParts.size() +
                    static_cast<size_t>(part - kProductParts.begin());
  const size_t first = lora_products_first_[at];
  return std::span(lora_products_).subspan(first, lora_products_first_[at + 1] - first);
}

void ForwardPass::ComputeLoraIn(int32_t layer, LoraPart in, int32_t begin, int32_t end) {
  ForLoraRuns(layer, in, begin, end, [&](const LoraWeights& lora, int32_t first, int32_t rows) {
    const MatMulArgs args = LoraInProduct(lora, in, first, rows);
    kernels_.matmul(args, 0, args.w.tiles());
  });
}

void ForwardPass::AddLoraOut(const LowRankOutputs& b, LoraPart in, int32_t part, int32_t first,
                             int32_t rows, float* y, ptrdiff_t y_stride) const {
  kernels_.add_low_rank(b,
                        {rows, LoraIn(first, in) + part * weights_.lora_rank,
                         static_cast<ptrdiff_t>(LoraStride(weights_.lora_rank)), y, y_stride},
                        0, b.outputs);
}

void ForwardPass::AddLoraToResidual(int32_t layer, LoraPart out, int32_t begin, int32_t end,
                                    float* y, ptrdiff_t y_stride) const {
  const bool attention = out == LoraPart::kAttentionOut;
  ForLoraRuns(layer, out, begin, end, [&](const LoraWeights& lora, int32_t first, int32_t rows) {
    AddLoraOut(attention ? lora.attention_out : lora.down,
               attention ? LoraPart::kAttentionOutIn : LoraPart::kDownIn, 0, first, rows,
               y + (first - begin) * y_stride, y_stride);
  });
}

void ForwardPass::AddLastLora(int32_t layer, int32_t begin, int32_t end, float* y,
                              ptrdiff_t y_stride) const {
  const LoraPart out = ComputesMlp(layer) ? LoraPart::kDown : LoraPart::kAttentionOut;
  AddLoraToResidual(layer, out, begin, end, y, y_stride);
}

void ForwardPass::AddLoraToQkv(int32_t layer, int32_t begin, int32_t end) {
  const ModelShape& s = weights_.shape;
  const auto add = [&](const LowRankOutputs& b, int32_t part, int32_t first, int32_t rows,
                       AlignedArray<float>* y, ptrdiff_t stride) {
    AddLoraOut(b, LoraPart::kAttentionIn, part, first, rows, y->data() + first * stride, stride);
  };
  ForLoraRuns(layer, LoraPart::kAttentionIn, begin, end,
              [&](const LoraWeights& lora, int32_t first, int32_t rows) {
                add(lora.k, 1, first, rows, &k_, Stride(s.kv_rows()));
                add(lora.v, 2, first, rows, &v_, Stride(s.kv_rows()));
                if (layer + 1 < info_.layers) {
                  add(lora.q, 0, first, rows, &q_, Stride(s.q_rows()));
                  return;
                }
                for (int32_t i = first; i < first + rows; ++i) {  // only wanted rows have a query
                  if (Planned(i).logits_row >= 0) add(lora.q, 0, i, 1, &q_, Stride(s.q_rows()));
                }
              });
}

// Token embeddings into the residual stream; RoPE angles of every row.

}  // namespace withy::engine
