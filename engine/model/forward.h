// Model over a packed file. Use it through model.h; this header is for model/ alone.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/kernels/activations.h"
#include "engine/kernels/aligned.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/thread_pool.h"
#include "engine/kv/block.h"
#include "engine/model/layers.h"
#include "engine/model/model.h"
#include "engine/model/rows.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {

// All members below the options are scratch of one Forward call; row i of a buffer belongs to
// active row i.
class PackedModel : public Model {
 public:
  PackedModel(std::unique_ptr<PackedFile> file, ModelWeights weights,
              std::unique_ptr<ThreadPool> pool, const Kernels& kernels,
              const ModelOptions& options);

  const ModelInfo& info() const override { return info_; }
  std::string_view target() const override { return kernels_.name; }
  int32_t threads() const override { return pool_->threads(); }
  const GgufFile& metadata() const override { return file_->metadata(); }
  absl::Status Forward(const Batch& batch, float* logits, const std::atomic<bool>* cancel) override;

 private:
  absl::Status RunPiece(const Batch& batch, float* logits, const std::atomic<bool>* cancel);
  void Reserve();
  void Embed();
  absl::Status GatherBlocks(const Batch& batch, int32_t layer);
  void SetExtents(int32_t layer);
  void ProjectQkv(int32_t layer, const LayerWeights& w);
  void StoreKv(int32_t layer, const LayerWeights& w);
  void StoreKey(int32_t i, const LayerWeights& w);
  void TurnQuery(int32_t i, const LayerWeights& w);
  void GatherTail(size_t i);
  void KeepWantedRows();
  void Attention(const LayerWeights& w);
  void FeedForward(const LayerWeights& w);
  void Tap(int32_t layer) const;
  void Logits(float* logits);

  void NormHeads(float* heads, int32_t count, const float* weight) const;
  std::pair<int32_t, int32_t> WantedRange() const;  // [first, last) active rows that want logits
  MatMulArgs Product(const PackedMatrix& w, const Activations& x, float* y,
                     ptrdiff_t y_stride) const;
  int32_t ActiveRows() const { return static_cast<int32_t>(active_.size()); }
  const PlannedRow& Planned(size_t i) const { return plan_[static_cast<size_t>(active_[i])]; }

  const std::unique_ptr<PackedFile> file_;
  const ModelWeights weights_;
  const std::unique_ptr<ThreadPool> pool_;
  const Kernels& kernels_;
  std::vector<LevelSpec> levels_;  // the full one last
  const std::function<void(int32_t, std::span<const float>)> layer_tap_;
  const int32_t max_piece_rows_;
  const ModelInfo info_;
  const KvGeometry geometry_;

  std::vector<PlannedRow> plan_;
  std::vector<int32_t> active_;  // indices into plan_, ascending
  bool uniform_ = true;          // every row is at the full level: no extents needed
  std::vector<int> head_extent_;
  std::vector<int> q_extent_;
  std::vector<int> neuron_extent_;
  std::vector<size_t> chunks_needed_;
  std::vector<std::vector<std::byte*>> context_blocks_;  // [context][chunk], of the current layer
  AlignedArray<std::byte> tail_bytes_;
  std::vector<std::byte*> tail_pointers_;  // scratch blocks, those of a row side by side
  std::vector<AttentionRow> attention_rows_;
  AlignedArray<float> x_;  // residual stream
  AlignedArray<float> q_;  // packed head order
  AlignedArray<float> attended_;
  AlignedArray<float> k_;
  AlignedArray<float> v_;
  AlignedArray<float> gate_;  // also the rows that go to the output head
  AlignedArray<float> up_;
  AlignedArray<float> angles_;
  Activations input_;
  Activations attention_input_;
  Activations neurons_;
};

}  // namespace withy::engine
