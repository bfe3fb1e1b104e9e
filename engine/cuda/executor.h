// Computes programs on a GPU. Neighbours: run.h walks a program, device_weights.h has the weights,
// gpu.h the device; model/executor.h is the interface, model/devices.cc chooses.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/cpu/bound_weights.h"
#include "engine/cpu/key_bias.h"
#include "engine/cuda/angle_table.h"
#include "engine/cuda/dense.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/gpu/gpu_clock.h"
#include "engine/cuda/kv_mirror.h"
#include "engine/model/executor.h"
#include "engine/model/kernel_observer.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine::cuda {

// Rows of a prompt from which on more at once do not make a row cheaper, where all is exact.
inline constexpr int32_t kExactPieceRows = 128;

struct ExecutorOptions {
  // Rows from which quantised weights are multiplied by mma; below, by dp4a. Bits do not depend on
  // it.
  int32_t mma_rows = 4;
  MemoryWay weights = MemoryWay::kDevice;
  // Rows of a prompt from which they are multiplied as F16 matrices, by UseDense.
  int32_t dense_rows = INT32_MAX;
};

class CudaExecutor final : public Executor {
 public:
  using Tap = std::function<void(int32_t layer, std::span<const float> hidden)>;

  // Copies the weights to the device. `file`, `facts`, `tap`, `stream` (null: all weights stay in
  // memory) and `observer` (null: nobody watches) must outlive it. Errors: UNIMPLEMENTED (a model
  // BeyondLlama); as Gpu::Allocate.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(
      std::unique_ptr<Gpu> gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
      WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options = {});
  // The same on a GPU that outlives it.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> CreateOn(
      Gpu& gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
      WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options = {});

  // From now on rows of long prompts (dense_rows.h) are multiplied as F16 matrices, in pieces of at
  // most `piece_rows`. Their bits depend on what is computed beside them, so KV of such an executor
  // is not that of one that does not: its target says so. Errors: as Gpu::Allocate; then nothing
  // has changed.
  absl::Status UseDense(DenseMath& math, int32_t least_rows, int32_t piece_rows);

  std::string_view target() const override { return target_; }
  int32_t piece_rows() const override { return piece_rows_; }
  int32_t threads() const override { return 1; }
  bool PinThreads() override { return false; }
  std::unique_ptr<ProgramRun> NewRun() override;

  Gpu& gpu() { return gpu_; }
  const ModelFacts& facts() const { return facts_; }
  const BoundWeights& bound() const { return bound_; }
  DeviceWeights& weights() { return *weights_; }
  const Tap& tap() const { return tap_; }
  WeightStream* stream() const { return stream_; }
  KernelObserver* observer() const { return observer_; }
  GpuClock* clock() { return clock_.get(); }  // null: nobody watches
  const ExecutorOptions& options() const { return options_; }
  AngleTable& angles() { return angles_; }
  KvMirror& kv_mirror() { return kv_mirror_; }
  DensePath* dense() const { return dense_.get(); }  // null: everything is exact

 private:
  CudaExecutor(Gpu& gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
               WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options);

  std::unique_ptr<Gpu> owned_gpu_;  // null: another owns it
  Gpu& gpu_;
  const ModelFacts& facts_;
  const BoundWeights bound_;
  const KeyBias key_bias_;
  AngleTable angles_;
  const Tap& tap_;
  WeightStream* const stream_;
  KernelObserver* const observer_;
  ExecutorOptions options_;
  std::unique_ptr<GpuClock> clock_;
  std::string target_;
  int32_t piece_rows_ = kExactPieceRows;
  std::unique_ptr<DeviceWeights> weights_;
  KvMirror kv_mirror_;
  std::unique_ptr<DensePath> dense_;
};

}  // namespace withy::engine::cuda
