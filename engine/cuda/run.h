// Walks one program on the GPU: queues the kernels of each operation. Neighbours: executor.h makes
// it, args.h has what kernels take, pass_inputs.h what is copied for a pass, workspace.h the
// buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/pass_inputs.h"
#include "engine/cuda/pass_stamps.h"
#include "engine/cuda/workspace.h"
#include "engine/model/executor.h"

namespace withy::engine::cuda {

// Passes of few rows are started whole, as a graph where possible; a stop takes effect before one.
// Of longer ones operations are queued at most two layers ahead of the GPU, so that a stop takes
// effect within three layers. A pause waits for what is queued.
class CudaRun final : public ProgramRun {
 public:
  explicit CudaRun(CudaExecutor& executor);

  void Start(const Program& program, const RowPlan& plan, const Batch& batch,
             float* logits) override;
  bool Run(const std::atomic<bool>* stop, int32_t end) override;
  double ops_done() const override { return next_op_; }
  void Abandon() override;
  absl::Status status() const override { return status_; }

 private:
  absl::Status Launch(const Op& op, const OpData& data);
  absl::Status LaunchStage(const Op& op);
  void LaunchEmbed(const Op& op);
  void LaunchNorm(const Op& op, const OpData& data);
  absl::Status LaunchAll(const OpData& data, bool fused);
  void LaunchProducts(const OpProducts& products, bool fused);
  void LaunchStoreKv(const Op& op, const OpData& data);
  void LaunchAttend(const Op& op, const OpData& data);
  absl::Status Tap(const Op& op, const OpData& data);
  void LaunchTakeLogitRows(const Op& op, const OpData& data);
  absl::Status Hidden(const Op& op, const OpData& data);
  // Copies x + LoRA of the first `rows` rows to the host, [rows, d_model].
  absl::StatusOr<std::vector<float>> Stream(int32_t rows, const OpData& data);

  // Whether the operations are started together, as a graph where the same were started before.
  bool StartsTogether(int32_t end) const;
  absl::Status LaunchNext();
  absl::Status LaunchTogether();
  absl::Status LaunchUntil(int32_t end, const std::atomic<bool>* stop);
  bool Fail(absl::Status status);
  absl::Status Finish();
  absl::Status AddDensities();

  const ModelShape& shape() const { return executor_.facts().shape; }
  int32_t LastLayer() const { return shape().layers - 1; }

  CudaExecutor& executor_;
  Gpu& gpu_;
  const Kernels& kernels_;
  DeviceWeights& weights_;
  Shape kernel_shape_;
  uint32_t block_bytes_ = 0;  // of kQ8
  PassStamps stamps_;
  Workspace workspace_;
  PassInputs inputs_;

  // Of the program.
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  Batch batch_;
  float* logits_ = nullptr;
  int32_t next_op_ = 0;
  absl::Status status_;
  bool prepared_ = false;
  bool finished_ = false;
  int32_t marked_layer_ = -1;
};

}  // namespace withy::engine::cuda
