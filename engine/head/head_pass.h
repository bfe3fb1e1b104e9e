// The forward pass of a draft head as steps of the thread pool. Neighbours: draft_head.h lends it
// out; cpu/parallel.h has the steps of products and attention.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cpu/activations.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cpu/workspace.h"
#include "engine/head/head_file.h"
#include "engine/head/head_states.h"
#include "engine/head/head_weights.h"
#include "engine/model/model.h"
#include "engine/model/rows.h"

namespace withy::engine {

// Computes one batch at a time, and is reused for its buffers. Not thread-safe; everything passed
// in is borrowed. A row's result depends neither on other rows nor on the thread count.
class HeadPass {
 public:
  HeadPass(const HeadShape& shape, const HeadWeights& weights, const Kernels& kernels,
           ThreadPool& pool);

  // `batch` is checked, and its contexts have states; both, and `logits`, must stay valid until the
  // pass is finished or abandoned. Errors: as DraftHead::Begin.
  absl::Status Start(const Batch& batch, float* logits);
  // False: `*stop` became true first, and the next Run goes on.
  bool Run(const std::atomic<bool>* stop) { return pool_.Run(steps_, stop); }
  double Done() const;
  void Abandon() { steps_.Clear(); }

 private:
  // What a row goes on from: features of the target, or a hidden state of the head.
  struct Source {
    std::span<const float> features;
    std::span<const float> hidden;
    int32_t fused_row = -1;   // of fused_
    float* leaves = nullptr;  // where the row's own hidden state goes; null: nowhere
  };

  absl::Status FindSources(const Batch& batch);
  void Resize(size_t rows);

  // Each appends steps.
  void Fuse();
  void Enter();
  void StoreKv();
  void Attend();
  void FeedForward();
  void Logits(float* logits);

  // Called by steps, for row i; or for wanted row w.
  void EnterRow(int32_t i);
  void StoreRow(int32_t i);
  void CopyTail(int32_t i);
  void Spread(int32_t w, float* logits);

  const ContextView& ContextOf(const PlannedRow& planned) const {
    return batch_.contexts[static_cast<size_t>(planned.row->context)];
  }
  int32_t count() const { return static_cast<int32_t>(rows_.size()); }
  int32_t wanted() const { return static_cast<int32_t>(wanted_.size()); }

  const HeadShape& shape_;
  const HeadWeights& weights_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  StepList& steps_;
  const KvGeometry geometry_;

  Batch batch_;                    // of the pass under way, as all below
  std::vector<PlannedRow> rows_;   // in the order of the batch
  std::vector<int32_t> wanted_;    // indices of the rows that want logits
  std::vector<Source> sources_;    // [row]
  std::vector<int32_t> featured_;  // indices of the rows that go on from features

  RowBuffer normed_;        // features, where fc reads them normed [feature_width]
  RowBuffer fused_;         // fc * features [d_model], of the featured rows
  RowBuffer entering_;      // normed embedding, then normed hidden state [2 * d_model]
  RowBuffer x_;             // residual stream [d_model]; of the wanted rows below
  RowBuffer q_;             // [q_rows]
  RowBuffer k_;             // [kv_rows]
  RowBuffer v_;             // [kv_rows]
  RowBuffer angles_;        // RopeAngles() of the row's position
  RowBuffer wanted_x_;      // of the wanted rows: the stream [d_model]
  RowBuffer wanted_q_;      // [q_rows]
  RowBuffer attended_;      // [q_rows]
  RowBuffer gate_;          // [d_ff]
  RowBuffer up_;            // [d_ff]
  RowBuffer draft_logits_;  // [draft_vocab]
  Activations feature_input_;
  Activations input_;
  Activations attention_input_;
  Activations ffn_input_;
  Activations neurons_;
  Activations head_input_;
  std::vector<AttentionRow> attention_rows_;  // [wanted]
  AlignedArray<float> attention_parts_;
  AlignedArray<std::byte> tail_bytes_;
  std::vector<std::byte*> tails_;
};

}  // namespace withy::engine
