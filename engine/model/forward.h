// One forward pass: the rows of a batch on their way through the model. Use it through model.h;
// this header is for model/ alone. Neighbours: packed_model.h makes passes and keeps them, rows.h
// plans, layers.h holds weights, cpu/parallel.h computes. See ARCHITECTURE.md, The
// engine's rules.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/cpu/activations.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/thread_pool.h"
#include "engine/kv/block.h"
#include "engine/model/layers.h"
#include "engine/model/model.h"
#include "engine/model/rows.h"

namespace withy::engine {

// Forms of its inputs that each kind of product needs (ActivationForms).
struct ActivationFormsOf {
  unsigned input = 0;
  unsigned attention = 0;
  unsigned neurons = 0;
  unsigned head = 0;
};

// What passes share; outlives them. Immutable but for the pool, which runs one pass at a time.
struct ModelParts {
  const ModelWeights& weights;
  const std::vector<LevelSpec>& levels;  // the full one last
  const ModelInfo& info;
  const Kernels& kernels;
  ThreadPool& pool;
  KvGeometry geometry;
  ActivationFormsOf forms;
  const std::function<void(int32_t, std::span<const float>)>& layer_tap;
  int32_t max_piece_rows;
};

// Written down as a list of steps for the pool, as far as the list has room, and then run; may be
// left between two steps. Batch after batch, one at a time; kept for its buffers. All members below
// the options are scratch of one piece of a batch; row i of a buffer belongs to row i of plan_, or
// of wanted_ once the last layer's K and V are stored.
class ForwardPass {
 public:
  explicit ForwardPass(const ModelParts& parts);

  // Takes a batch, which stays until the pass is over. Errors: as Model::Begin.
  absl::Status Start(const Batch& batch, float* logits);
  // As Pass::Run.
  bool Run(const std::atomic<bool>* stop, double until);
  // As Pass::Done: every row counts alike, a layer by what the rows' levels compute of it, and
  // every step of a layer alike.
  double Done() const;
  // Gives up what is left.
  void Abandon() { steps_.Clear(); }

 private:
  static constexpr ptrdiff_t kStridePad = 16;  // keeps equal columns of rows out of one cache set

  // What rows of lower levels compute of one layer, row by row.
  struct Extents {
    std::vector<int> heads;  // that attend; fewer than q_rows has where the context has fewer
    std::vector<int> q_rows;
    std::vector<int> kv_rows;
    std::vector<int> neurons;
  };

  absl::Status CheckBlocks() const;
  bool AddMore();
  bool PlanNextPiece();
  void Reserve();
  void PlanAttention();
  void PlanExtents();
  void PlanLora();
  void PlanShares();
  // Share of the batch that is done with so many layers of the piece under way.
  double DoneWith(double layers) const;
  // Of the list, the first step that is not to be begun.
  int StepsUntil(double until) const;

  // Each appends steps to the list.
  void AddLayer(int32_t layer);
  void AddEmbed();
  void AddInput(int32_t layer, LoraPart in);
  void AddQkv(int32_t layer);
  void AddStoreKv(int32_t layer);
  void AddKeepWanted();
  void AddClearHeads(int32_t layer);
  void AddAttention(int32_t layer);
  void AddFeedForward(int32_t layer);
  void AddTap(int32_t layer);
  void AddLogits();

  // Floats between two rows of a matrix of n columns.
  static ptrdiff_t Stride(int32_t n) { return n + kStridePad; }
  // Floats of one row's LoRA inputs: of Q, K, V, O, gate, up and down.
  static size_t LoraStride(int32_t rank) { return 7 * static_cast<size_t>(rank) + kStridePad; }

  // The LoRA of row i in a layer, null when it has none for `part`.
  const LoraWeights* LoraOf(int32_t layer, int32_t i, LoraPart part) const;
  // A * inputs of so many rows, which have this LoRA, into lora_in_.
  MatMulArgs LoraInProduct(const LoraWeights& lora, LoraPart in, int32_t first, int32_t rows);
  // The same for rows [begin, end), at once.
  void ComputeLoraIn(int32_t layer, LoraPart in, int32_t begin, int32_t end);
  // What PlanLora made of `in`, a part that is computed beside another product; may be empty.
  std::span<const MatMulArgs> LoraProducts(int32_t layer, LoraPart in) const;
  // Calls fn(lora, first row, rows) for rows of [begin, end) side by side that have the same LoRA,
  // with `part` in it.
  template <typename Fn>
  void ForLoraRuns(int32_t layer, LoraPart part, int32_t begin, int32_t end, Fn fn) const;
  // y += B * lora_in_ for the residual stream of rows [begin, end): of O or down.
  void AddLoraToResidual(int32_t layer, LoraPart out, int32_t begin, int32_t end, float* y,
                         ptrdiff_t y_stride) const;
  // The same of the last of them that a layer computes.
  void AddLastLora(int32_t layer, int32_t begin, int32_t end, float* y, ptrdiff_t y_stride) const;
  void AddLoraToQkv(int32_t layer, int32_t begin, int32_t end);
  // `part`: how many ranks B's input lies behind that of `in`.
  void AddLoraOut(const LowRankOutputs& b, LoraPart in, int32_t part, int32_t first, int32_t rows,
                  float* y, ptrdiff_t y_stride) const;
  float* LoraIn(int32_t i, LoraPart in);
  const float* LoraIn(int32_t i, LoraPart in) const;

  void StoreKey(int32_t layer, int32_t i);
  void TurnQuery(int32_t layer, int32_t i);
  void GatherTail(int32_t layer, int32_t i);
  void NormHeads(float* heads, int32_t count, const float* weight) const;
  std::byte* BlockOf(int32_t layer, const PlannedRow& planned, int32_t slot) const;
  MatMulArgs Product(const PackedMatrix& w, const Activations& x, int32_t rows, float* y,
                     ptrdiff_t y_stride) const;
  int32_t Rows() const { return static_cast<int32_t>(plan_.size()); }
  const PlannedRow& Planned(int32_t i) const { return plan_[static_cast<size_t>(i)]; }
  // Once K and V are stored, the last layer goes on with the rows of wanted_.
  int32_t RowsAfterKv(int32_t layer) const;
  const Extents& ExtentsAfterKv(int32_t layer) const;
  // Whether some row goes through a layer's attention, its MLP: levels may leave them out.
  bool ComputesAttention(int32_t layer) const;
  bool ComputesMlp(int32_t layer) const;

  const ModelWeights& weights_;
  const std::vector<LevelSpec>& levels_;
  const ModelInfo& info_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  const KvGeometry geometry_;
  const ActivationFormsOf forms_;
  const std::function<void(int32_t, std::span<const float>)>& layer_tap_;
  const int32_t max_piece_rows_;
  StepList& steps_;

  Batch batch_;               // the caller's
  float* logits_ = nullptr;   // likewise
  int32_t end_row_ = 0;       // of the piece under way; the next one begins there
  int32_t logits_rows_ = 0;   // of the pieces before it
  int32_t next_layer_ = 0;    // that is not in the list yet
  int32_t listed_layer_ = 0;  // the first one in it
  std::vector<int> ends_;     // [layer - listed_layer_]: steps of the list up to a layer's end
  std::vector<double> share_before_;  // [layer + 1]: of the piece's work, what earlier layers are

  std::vector<PlannedRow> plan_;
  std::vector<int32_t> wanted_;              // rows of plan_ that want logits, ascending
  bool uniform_ = true;                      // every row is at the full level: no extents needed
  std::vector<Extents> extents_;             // [layer]
  Extents wanted_extents_;                   // of the last layer, for the rows of wanted_
  bool narrowed_ = false;                    // some row attends with fewer heads than its level has
  bool lora_ = false;                        // some row has LoRA
  AlignedArray<float> lora_in_;              // A * inputs, [row][part]
  std::vector<GateUpLowRank> gate_up_lora_;  // layer after layer
  std::vector<size_t> gate_up_first_;        // [layer + 1]: where a layer's begin
  std::vector<MatMulArgs> lora_products_;    // layer after layer, part after part
  std::vector<size_t> lora_products_first_;  // where a layer's part begins
  AlignedArray<std::byte> tail_bytes_;
  std::vector<std::byte*> tail_pointers_;     // scratch blocks, those of a row side by side
  std::vector<AttentionRow> attention_rows_;  // [layer][row]; of the last layer only wanted_
  AlignedArray<float> x_;                     // residual stream
  AlignedArray<float> q_;                     // packed head order
  AlignedArray<float> attended_;
  AlignedArray<float> k_;
  AlignedArray<float> v_;
  AlignedArray<float> gate_;  // also the rows that go to the output head
  AlignedArray<float> up_;
  AlignedArray<float> angles_;
  Activations input_;
  Activations attention_input_;
  Activations neurons_;
  Activations head_input_;
};

}  // namespace withy::engine
