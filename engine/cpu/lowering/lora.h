// The products of LoRA beside those of a pass: y += B * a with a = A * input, for the runs of rows
// that are computed at a level below the full one. Neighbours: lower.h puts them into the steps of
// the operations that they belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cpu/bound_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/workspace.h"
#include "engine/model/facts.h"
#include "engine/model/program.h"

namespace withy::engine {

// Product of w and the first `rows` rows of x, into y [rows, n_out].
MatMulArgs ProductOf(const PackedMatrix& w, const Activations& x, int32_t rows, RowBuffer& y);
// The weight of the operation's role as a vector; nullptr: it reads none.
const float* VectorOf(const BoundWeights& weights, const Op& op, WeightRole role);
// x[n] *= factor
void Scale(float* x, int32_t n, float factor);
// The kernel of an activation with a gate.
decltype(GateUpFunction::of) GateUpKernel(const Kernels& kernels, Activation activation);

// For one program at a time; everything passed in is borrowed. Steps refer to what the spans hold,
// which is valid until the next Start(). Not thread-safe, but for what steps call: that writes the
// rows that it is given.
class LoraLowering {
 public:
  LoraLowering(const ModelFacts& facts, const BoundWeights& weights, const Kernels& kernels,
               Workspace& work)
      : facts_(facts), weights_(weights), kernels_(kernels), work_(work) {}

  void Start(const Program& program, const RowPlan& plan);

  // The products that compute a = A * input, of all runs of op.lower.
  std::span<const MatMulArgs> InputProducts(const Op& op);
  // B of gate and up with their a, of all runs of op.add.
  std::span<const GateUpLowRank> GateUp(const Op& op);

  // Called by steps.
  //
  // Computes a = A * input of op.lower for rows [begin, end) on the calling thread.
  void ComputeInputs(const Op& op, int32_t begin, int32_t end) const;
  // Adds B * a of op.add to rows [begin, end) of the residual stream; y points at row `begin`.
  void AddToStream(const Op& op, int32_t begin, int32_t end, float* y, ptrdiff_t stride) const;
  // Adds B * a of op.add to q, k and v of rows [begin, end).
  void AddToQkv(const Op& op, int32_t begin, int32_t end) const;

 private:
  // Where a row's a = A * input is kept.
  float* Inputs(int32_t row, LoraPart in) const;
  // Product that computes a = A * input for the rows of `run`.
  MatMulArgs InputProduct(const Op& op, const LowRankRun& run) const;
  // Adds B * a to rows [first, first + rows); y points at row `first`. `in` computed a for several
  // outputs; `part` is the index of this one.
  void Add(const LoraWeightName& name, LoraPart in, int32_t part, int32_t first, int32_t rows,
           float* y, ptrdiff_t stride) const;

  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const Kernels& kernels_;
  Workspace& work_;
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  // Steps point into these, so they keep their capacity from Start() on.
  std::vector<MatMulArgs> products_;    // by operation
  std::vector<GateUpLowRank> gate_up_;  // by operation
};

}  // namespace withy::engine
