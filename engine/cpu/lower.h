// Turns operations of a program into steps for the thread pool: names become addresses here.
// Neighbours: executor.h drives it, parallel.h has the steps of products and attention, workspace.h
// the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/cpu/bound_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cpu/workspace.h"
#include "engine/model/facts.h"
#include "engine/model/program.h"

namespace withy::engine {

// Shown the residual stream of a layer, [rows, d_model].
using LayerTap = std::function<void(int32_t layer, std::span<const float> hidden)>;

// One program at a time. Steps refer to this object, which stays where it is, and to the program.
class Lowering {
 public:
  static constexpr int kMaxStepsPerOp = 2;

  Lowering(const ModelFacts& facts, const BoundWeights& weights, const Kernels& kernels,
           const LayerTap& tap);
  Lowering(const Lowering&) = delete;
  Lowering& operator=(const Lowering&) = delete;

  // As ProgramRun::Start.
  void Start(const Program& program, const RowPlan& plan, const Batch& batch, float* logits);

  // Appends the steps of one operation of the program, at most kMaxStepsPerOp.
  void Lower(const Op& op, StepList& steps);

 private:
  // Each appends the steps of one kind of operation.
  void Embed(const Op& op, StepList& steps);
  void Norm(const Op& op, StepList& steps);
  void Qkv(const Op& op, StepList& steps);
  void StoreKv(const Op& op, StepList& steps);
  void GatherTail(const Op& op, StepList& steps);
  void KeepWanted(StepList& steps);
  void Attend(const Op& op, StepList& steps);
  void ClearHeads(const Op& op, StepList& steps);
  void AttentionOut(const Op& op, StepList& steps);
  void GateUp(const Op& op, StepList& steps);
  void Down(const Op& op, StepList& steps);
  void Tap(const Op& op, StepList& steps);
  void TakeLogitRows(const Op& op, StepList& steps);
  void Head(const Op& op, StepList& steps);

  // What a row does in its own step.
  void StoreKey(const Op& op, int32_t i);
  void TurnQuery(const Op& op, int32_t i);
  void CopyTail(const Op& op, int32_t i);
  void NormHeads(const Op& op, WeightRole role, float* heads, int32_t count) const;
  std::byte* BlockOf(int32_t layer, const PlannedRow& planned, int32_t slot) const;

  // y [rows, n_out] of w and the rows of x, from row 0 on.
  static MatMulArgs Product(const PackedMatrix& w, const Activations& x, int32_t rows,
                            RowBuffer& y);
  // The inputs of the low-rank products of `run`: where they are computed into and read from.
  float* LoraInputs(int32_t row, LoraPart in);
  MatMulArgs LoraInputProduct(const Op& op, const LowRankRun& run);
  // Products of op.lower, beside another product; stays until the program is over.
  std::span<const MatMulArgs> LoraInputProducts(const Op& op);
  // The same for rows [begin, end), at once.
  void ComputeLoraInputs(const Op& op, int32_t begin, int32_t end);
  // y += B * a of op.add for rows [begin, end); `y` is row `begin` of it.
  void AddLoraToStream(const Op& op, int32_t begin, int32_t end, float* y, ptrdiff_t stride);
  void AddLoraToQkv(const Op& op, int32_t begin, int32_t end);
  void AddLora(const LoraWeightName& name, LoraPart in, int32_t part, int32_t first, int32_t rows,
               float* y, ptrdiff_t stride);

  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const Kernels& kernels_;
  const LayerTap& tap_;
  const KvGeometry geometry_;

  // The caller's, of the present program.
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  Batch batch_;
  float* logits_ = nullptr;

  Workspace work_;
  std::vector<AttentionRow> attention_rows_;  // [layer][row]; of the last layer only wanted ones
  std::vector<MatMulArgs> lora_products_;     // operation after operation
  std::vector<GateUpLowRank> gate_up_lora_;   // likewise
};

}  // namespace withy::engine
