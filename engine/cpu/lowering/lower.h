// Turns operations of a program into steps for the thread pool, and names into addresses.
// Neighbours: executor.h drives it, lora.h has the products of LoRA, experts.h and streams.h what
// only some models have, parallel.h the steps of products and attention, workspace.h the buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/cpu/bound_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/key_bias.h"
#include "engine/cpu/lowering/experts.h"
#include "engine/cpu/lowering/lora.h"
#include "engine/cpu/lowering/streams.h"
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
  static constexpr int kMaxStepsPerOp =
      std::max(ExpertLowering::kMaxStepsPerOp, StreamLowering::kMaxStepsPerOp);

  Lowering(const ModelFacts& facts, const BoundWeights& weights, const KeyBias& key_bias,
           const Kernels& kernels, int threads, const LayerTap& tap, WeightStream* stream);
  Lowering(const Lowering&) = delete;
  Lowering& operator=(const Lowering&) = delete;

  // As ProgramRun::Start.
  void Start(const Program& program, const RowPlan& plan, const Batch& batch, float* logits);

  // Appends the steps of one operation of the program, at most kMaxStepsPerOp.
  void Lower(const Op& op, StepList& steps);

  // Before the steps run, each time that they go on.
  void Resume() { experts_.Resume(); }
  // Not OK once a step could not read its weights: what the program has computed since is void.
  absl::Status status() const { return experts_.status(); }

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
  void AddBranch(const Op& op, StepList& steps);
  void Tap(const Op& op, StepList& steps);
  void TakeLogitRows(const Op& op, StepList& steps);
  void Head(const Op& op, StepList& steps);
  void FinishLogits(const Op& op, StepList& steps);
  void Hidden(const Op& op, StepList& steps);

  // Called by steps, for row i.
  void StoreKeyAndValue(const Op& op, int32_t i);
  void FinishQuery(const Op& op, int32_t i);
  void CopyTail(const Op& op, int32_t i);
  // Norms `count` heads, one by one or together.
  void NormHeads(const Op& op, WeightRole role, float* heads, int32_t count) const;
  void TurnHeads(const Op& op, int32_t i, float* heads, int32_t count);
  KvBlockName BlockOf(int32_t layer, const PlannedRow& planned, int32_t slot) const;

  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const KeyBias& key_bias_;
  const Kernels& kernels_;
  const int threads_;
  const LayerTap& tap_;
  const WeightStream* const stream_;  // null: all weights stay in memory
  const KvGeometry geometry_;
  std::vector<std::vector<float>> ropes_;  // frequencies of each RoPE base

  // The arguments of Start().
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  Batch batch_;
  float* logits_ = nullptr;

  Workspace work_;
  LoraLowering lora_;       // uses work_
  ExpertLowering experts_;  // likewise
  StreamLowering streams_;  // likewise
  // Attention that rows give to chunks, [row, kv_head, chunk], in layers that all rows continue; 0
  // chunks: nobody asks.
  std::vector<float> density_;
  int32_t density_chunks_ = 0;
  // Steps point into it, so it keeps its capacity from Start() on.
  std::vector<AttentionRow> attention_rows_;  // by layer, then row
  AlignedArray<float> attention_parts_;       // AttentionArgs::parts, of one layer at a time
};

}  // namespace withy::engine
