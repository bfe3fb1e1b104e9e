// What models with copies of the residual stream (AltUp), with a branch beside attention (LAuReL)
// and with inputs of each layer compute beside attention and MLP. A row's result is the same in any
// batch. Neighbours: lower.h puts them into the steps of a pass; model/program.h says what each
// operation computes.
#pragma once

#include <cstdint>

#include "engine/cpu/bound_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/workspace.h"
#include "engine/model/facts.h"
#include "engine/model/program.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

// For one program at a time; everything passed in is borrowed. Steps refer to this object. Not
// thread-safe, but for what steps call: that writes the rows that it is given.
class StreamLowering {
 public:
  static constexpr int kMaxStepsPerOp = 4;

  // `stream`: null if all weights stay in memory.
  StreamLowering(const ModelFacts& facts, const BoundWeights& weights, const Kernels& kernels,
                 Workspace& work, const WeightStream* stream)
      : facts_(facts), weights_(weights), kernels_(kernels), work_(work), stream_(stream) {}

  void Start(const RowPlan& plan) { plan_ = &plan; }

  // Each appends the steps of one kind of operation.
  void LayerInputs(const Op& op, StepList& steps);
  void Spread(const Op& op, StepList& steps);
  void Predict(const Op& op, StepList& steps);
  void Laurel(const Op& op, StepList& steps);
  void Correct(const Op& op, StepList& steps);
  void AddLayerInput(const Op& op, StepList& steps);
  void Merge(const Op& op, StepList& steps);

 private:
  // Called by steps, for row i.
  void MakeLayerInputs(const Op& op, int32_t i);
  void PredictRow(const Op& op, int32_t i);
  void CorrectRow(const Op& op, int32_t i);
  // What the router says of the row of x: tanh(router * norm(x) / d_model), [streams].
  void Route(const Op& op, int32_t i, float* modalities) const;
  // Copy c of row i, 1 <= c < streams.
  float* CopyOf(int32_t i, int32_t c) { return work_.streams.row(i) + c * facts_.shape.d_model; }
  // Factor that scales y [d_model] to a root mean square of `size`.
  float FactorTo(float size, const float* y) const;

  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const Kernels& kernels_;
  Workspace& work_;
  const WeightStream* const stream_;
  const RowPlan* plan_ = nullptr;
};

}  // namespace withy::engine
