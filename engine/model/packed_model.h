// Model over a packed file. Use it through model.h; only model/ includes this header. Neighbours:
// planned_pass.h plans and drives, executor.h computes.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/model/devices.h"
#include "engine/model/executor.h"
#include "engine/model/facts.h"
#include "engine/model/model.h"
#include "engine/model/planned_pass.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {

class PackedModel : public Model {
 public:
  // With a weight budget it also places the weights. Errors: as Model::Open.
  static absl::StatusOr<std::unique_ptr<Model>> Open(std::unique_ptr<PackedFile> file,
                                                     OpenedDevice device,
                                                     const ModelOptions& options);

  const ModelInfo& info() const override { return info_; }
  std::string_view target() const override { return executor_->target(); }
  int32_t threads() const override { return executor_->threads(); }
  int32_t piece_rows() const override { return std::min(executor_->piece_rows(), max_piece_rows_); }
  bool PinThreads() override { return executor_->PinThreads(); }
  bool Rest() override;
  bool Wakes() const override { return wakes_; }
  WeightStreamStats weight_stats() const override;
  bool gives_features() const override { return !on_gpu_; }
  std::string packed_path() const override { return file_->path(); }
  bool weights_in_memory() const override {
    return stream_ == nullptr && file_->in_memory() && !file_->rests();
  }
  const GgufFile& metadata() const override { return file_->metadata(); }
  absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) override;

 private:
  class BorrowedPass;

  PackedModel(std::unique_ptr<PackedFile> file, ModelFacts facts, const ModelOptions& options);
  absl::Status PlaceWeights(const ModelOptions& options);
  absl::Status Wake();

  const std::unique_ptr<PackedFile> file_;
  const ModelFacts facts_;
  const std::function<void(int32_t, std::span<const float>)> layer_tap_;
  int32_t max_piece_rows_;  // 0: the executor's
  const std::function<void(const absl::Status&)> on_lost_;
  bool on_gpu_ = false;
  std::atomic<bool> wakes_{false};
  const ModelInfo info_;
  std::unique_ptr<WeightStream> stream_;  // null: all weights stay in memory
  std::unique_ptr<Executor> executor_;
  std::vector<std::unique_ptr<PlannedPass>> idle_;  // finished passes; reused for their buffers
};

}  // namespace withy::engine
