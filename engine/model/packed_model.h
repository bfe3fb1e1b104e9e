// Model over a packed file. Use it through model.h; this header is for model/ alone. Neighbours:
// forward.h computes, layers.h finds the weights in the file.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/model/forward.h"
#include "engine/model/model.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {

class PackedModel : public Model {
 public:
  PackedModel(std::unique_ptr<PackedFile> file, ModelWeights weights,
              std::unique_ptr<ThreadPool> pool, const Kernels& kernels,
              const ModelOptions& options);

  const ModelInfo& info() const override { return info_; }
  std::string_view target() const override { return kernels_.name; }
  int32_t threads() const override { return pool_->threads(); }
  bool PinThreads() override { return pool_->PinThreads(); }
  const GgufFile& metadata() const override { return file_->metadata(); }
  absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) override;

 private:
  class BorrowedPass;

  const std::unique_ptr<PackedFile> file_;
  const ModelWeights weights_;
  const std::unique_ptr<ThreadPool> pool_;
  const Kernels& kernels_;
  const std::vector<LevelSpec> levels_;  // the full one last
  const std::function<void(int32_t, std::span<const float>)> layer_tap_;
  const int32_t max_piece_rows_;
  const ModelInfo info_;
  std::vector<std::unique_ptr<ForwardPass>> idle_;  // passes that are over, for their buffers
};

}  // namespace withy::engine
