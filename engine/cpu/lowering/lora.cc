#include "engine/cpu/lowering/lora.h"

#include <algorithm>
#include <array>

namespace withy::engine {
namespace {

// Calls fn(run) for the part of each run that lies in rows [begin, end).
template <typename Fn>
void ForRunsIn(std::span<const LowRankRun> runs, int32_t begin, int32_t end, Fn fn) {
  for (const LowRankRun& run : runs) {
    const int32_t first = std::max(run.first, begin);
    const int32_t last = std::min(run.first + run.rows, end);
    if (first < last) fn(LowRankRun{first, last - first, run.level});
  }
}

}  // namespace

MatMulArgs ProductOf(const PackedMatrix& w, const Activations& x, int32_t rows, RowBuffer& y) {
  MatMulArgs args;
  args.w = w;
  args.x = &x;
  args.rows = rows;
  args.y = y.data();
  args.y_stride = y.stride();
  return args;
}

const float* VectorOf(const BoundWeights& weights, const Op& op, WeightRole role) {
  const WeightName* name = op.Find(role);
  return name == nullptr ? nullptr : weights.Vector(*name);
}

void Scale(float* x, int32_t n, float factor) {
  if (factor == 1.0f) return;
  for (int32_t i = 0; i < n; ++i) x[i] *= factor;
}

decltype(GateUpFunction::of) GateUpKernel(const Kernels& kernels, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return kernels.swiglu;
    case Activation::kGelu:
      return kernels.geglu;
    case Activation::kClampedSilu:
      return kernels.clamped_swiglu;
  }
  return nullptr;
}

void LoraLowering::Start(const Program& program, const RowPlan& plan) {
  program_ = &program;
  plan_ = &plan;
  products_.clear();
  products_.reserve(program.runs.size());
  gate_up_.clear();
  gate_up_.reserve(program.runs.size());
}

float* LoraLowering::Inputs(int32_t row, LoraPart in) const {
  static constexpr std::array<int32_t, 4> kOffset = {0, 3, 4, 6};  // of the A parts, in ranks
  return work_.lora.row(row) + kOffset[static_cast<size_t>(in)] * facts_.lora_rank;
}

MatMulArgs LoraLowering::InputProduct(const Op& op, const LowRankRun& run) const {
  const LoraPart in = op.lower_part;
  const Activations& inputs = in == LoraPart::kAttentionOutIn ? work_.attention_input
                              : in == LoraPart::kDownIn       ? work_.neurons
                                                              : work_.input;
  MatMulArgs args =
      ProductOf(weights_.LoraInput({in, op.layer, run.level}), inputs, run.rows, work_.lora);
  args.y = Inputs(run.first, in);
  args.x_row = run.first;
  return args;
}

std::span<const MatMulArgs> LoraLowering::InputProducts(const Op& op) {
  const size_t first = products_.size();
  for (const LowRankRun& run : program_->Runs(op.lower)) {
    products_.push_back(InputProduct(op, run));
  }
  return std::span(products_).subspan(first);
}

void LoraLowering::ComputeInputs(const Op& op, int32_t begin, int32_t end) const {
  ForRunsIn(program_->Runs(op.lower), begin, end, [&](const LowRankRun& run) {
    const MatMulArgs args = InputProduct(op, run);
    kernels_.matmul(args, 0, args.w.tiles());
  });
}

void LoraLowering::Add(const LoraWeightName& name, LoraPart in, int32_t part, int32_t first,
                       int32_t rows, float* y, ptrdiff_t stride) const {
  const LowRankOutputs& b = weights_.LoraOutput(name);
  kernels_.add_low_rank(
      b, {rows, Inputs(first, in) + part * facts_.lora_rank, work_.lora.stride(), y, stride}, 0,
      b.outputs);
}

void LoraLowering::AddToStream(const Op& op, int32_t begin, int32_t end, float* y,
                               ptrdiff_t stride) const {
  const LoraPart in =
      op.add_part == LoraPart::kAttentionOut ? LoraPart::kAttentionOutIn : LoraPart::kDownIn;
  ForRunsIn(program_->Runs(op.add), begin, end, [&](const LowRankRun& run) {
    Add({op.add_part, op.add_layer, run.level}, in, 0, run.first, run.rows,
        y + (run.first - begin) * stride, stride);
  });
}

void LoraLowering::AddToQkv(const Op& op, int32_t begin, int32_t end) const {
  const bool own_kv = op.kv_layer == op.layer;
  const bool last = own_kv && plan_->OnlyWantedAfterKv(op.layer);
  ForRunsIn(program_->Runs(op.add), begin, end, [&](const LowRankRun& run) {
    const auto add = [&](LoraPart out, int32_t part, int32_t first, int32_t rows, RowBuffer& y) {
      Add({out, op.add_layer, run.level}, LoraPart::kAttentionIn, part, first, rows, y.row(first),
          y.stride());
    };
    if (own_kv) add(LoraPart::kK, 1, run.first, run.rows, work_.k);
    if (own_kv) add(LoraPart::kV, 2, run.first, run.rows, work_.v);
    if (!last) {
      add(LoraPart::kQ, 0, run.first, run.rows, work_.q);
      return;
    }
    for (int32_t i = run.first; i < run.first + run.rows; ++i) {  // only wanted rows have a query
      if (plan_->row(i).logits_row >= 0) add(LoraPart::kQ, 0, i, 1, work_.q);
    }
  });
}

std::span<const GateUpLowRank> LoraLowering::GateUp(const Op& op) {
  const size_t first = gate_up_.size();
  for (const LowRankRun& run : program_->Runs(op.add)) {
    gate_up_.push_back({.begin = run.first,
                        .end = run.first + run.rows,
                        .gate = &weights_.LoraOutput({LoraPart::kGate, op.add_layer, run.level}),
                        .up = &weights_.LoraOutput({LoraPart::kUp, op.add_layer, run.level}),
                        .a = Inputs(run.first, LoraPart::kFfnIn),
                        .a_stride = work_.lora.stride()});
  }
  return std::span(gate_up_).subspan(first);
}

}  // namespace withy::engine
