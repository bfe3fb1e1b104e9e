// Turns operations of a program into steps for the thread pool, and names into addresses.
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
#include "engine/cpu/key_bias.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cpu/workspace.h"
#include "engine/model/facts.h"
#include "engine/model/program.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

// Receives the residual stream after a layer, [rows, d_model].
using LayerTap = std::function<void(int32_t layer, std::span<const float> hidden)>;

// Lowers one program at a time. The steps refer to this object and to the program, so both must
// stay valid and in place until the steps have run. Not thread-safe.
class Lowering {
 public:
  static constexpr int kMaxStepsPerOp = 2;

  Lowering(const ModelFacts& facts, const BoundWeights& weights, const KeyBias& key_bias,
           const Kernels& kernels, int threads, const LayerTap& tap, const WeightStream* stream);
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
  // Arguments of attention over the last `rows` of attention_rows_.
  AttentionArgs AttentionOf(int32_t rows, bool all_rows);
  void ReserveParts();
  void AddDensities() const;
  void ClearHeads(const Op& op, StepList& steps);
  void AttentionOut(const Op& op, StepList& steps);
  void GateUp(const Op& op, StepList& steps);
  void Down(const Op& op, StepList& steps);
  void Tap(const Op& op, StepList& steps);
  void TakeLogitRows(const Op& op, StepList& steps);
  void Head(const Op& op, StepList& steps);

  // Called by steps, for row i.
  void StoreKeyAndValue(const Op& op, int32_t i);
  void FinishQuery(const Op& op, int32_t i);
  void CopyTail(const Op& op, int32_t i);
  void NormHeads(const Op& op, WeightRole role, float* heads, int32_t count) const;
  KvBlockName BlockOf(int32_t layer, const PlannedRow& planned, int32_t slot) const;
  const KvMemory& MemoryOf(const PlannedRow& planned) const;

  // Product of w and the first `rows` rows of x, into y [rows, n_out].
  static MatMulArgs Product(const PackedMatrix& w, const Activations& x, int32_t rows,
                            RowBuffer& y);
  // Where a row's a = A * input is kept.
  float* LoraInputs(int32_t row, LoraPart in);
  // Product that computes a = A * input for the rows of `run`.
  MatMulArgs LoraInputProduct(const Op& op, const LowRankRun& run);
  // The products of all runs of op.lower, valid until the next Start().
  std::span<const MatMulArgs> LoraInputProducts(const Op& op);
  // Computes a = A * input of op.lower for rows [begin, end) on the calling thread.
  void ComputeLoraInputs(const Op& op, int32_t begin, int32_t end);
  // Adds B * a of op.add to rows [begin, end) of the residual stream; y points at row `begin`.
  void AddLoraToStream(const Op& op, int32_t begin, int32_t end, float* y, ptrdiff_t stride);
  // Adds B * a of op.add to q, k and v of rows [begin, end).
  void AddLoraToQkv(const Op& op, int32_t begin, int32_t end);
  // Adds B * a to rows [first, first + rows); y points at row `first`. `in` computed a for several
  // outputs; `part` is the index of this one.
  void AddLora(const LoraWeightName& name, LoraPart in, int32_t part, int32_t first, int32_t rows,
               float* y, ptrdiff_t stride);

  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const KeyBias& key_bias_;
  const Kernels& kernels_;
  const int threads_;
  const LayerTap& tap_;
  const WeightStream* const stream_;  // null: all weights stay in memory
  const KvGeometry geometry_;

  // The arguments of Start().
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  Batch batch_;
  float* logits_ = nullptr;

  Workspace work_;
  // Attention that rows give to chunks, [row, kv_head, chunk], in all layers but the last; 0
  // chunks: nobody asks.
  std::vector<float> density_;
  int32_t density_chunks_ = 0;
  // Steps point into these, so they keep their capacity from Start() on.
  std::vector<AttentionRow> attention_rows_;  // by layer, then row; the last layer's wanted rows
  AlignedArray<float> attention_parts_;       // AttentionArgs::parts, of one layer at a time
  std::vector<MatMulArgs> lora_products_;     // by operation
  std::vector<GateUpLowRank> gate_up_lora_;   // by operation
};

}  // namespace withy::engine
