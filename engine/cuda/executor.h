// Computes programs on a GPU. Neighbours: run.h walks a program, device_weights.h has the weights,
// gpu.h the device; model/executor.h is the interface, model/devices.cc chooses.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/cpu/bound_weights.h"
#include "engine/cpu/key_bias.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/gpu.h"
#include "engine/cuda/gpu_clock.h"
#include "engine/model/executor.h"
#include "engine/model/kernel_observer.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine::cuda {

struct ExecutorOptions {
  // Rows from which quantised weights are multiplied by mma; below, by dp4a. Bits do not depend on
  // it.
  int32_t mma_rows = 4;
  MemoryWay weights = MemoryWay::kDevice;
};

class CudaExecutor final : public Executor {
 public:
  using Tap = std::function<void(int32_t layer, std::span<const float> hidden)>;

  // Copies the weights to the device. `file`, `facts`, `tap`, `stream` (null: all weights stay in
  // memory) and `observer` (null: nobody watches) must outlive it. Errors: as Gpu::Allocate.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      std::unique_ptr<Gpu> gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
      WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options = {});
  // The same on a GPU that outlives it.
  static absl::StatusOr<std::unique_ptr<Executor>> CreateOn(Gpu& gpu, const PackedFile& file,
                                                            const ModelFacts& facts, const Tap& tap,
                                                            WeightStream* stream,
                                                            KernelObserver* observer,
                                                            const ExecutorOptions& options = {});

  std::string_view target() const override { return gpu_.target(); }
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

 private:
  CudaExecutor(Gpu& gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
               WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options);

  std::unique_ptr<Gpu> owned_gpu_;  // null: another owns it
  Gpu& gpu_;
  const ModelFacts& facts_;
  const BoundWeights bound_;
  const KeyBias key_bias_;
  const Tap& tap_;
  WeightStream* const stream_;
  KernelObserver* const observer_;
  const ExecutorOptions options_;
  std::unique_ptr<GpuClock> clock_;
  std::unique_ptr<DeviceWeights> weights_;
};

}  // namespace withy::engine::cuda
