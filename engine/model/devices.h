// Chooses the device that computes a model. To support another device, add an executor in a folder
// beside cpu/ and a line in devices.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/cuda/executor.h"
#include "engine/model/executor.h"
#include "engine/model/facts.h"
#include "engine/model/model.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

// What computes, chosen before weights are placed: a GPU has memory of its own for them.
struct OpenedDevice {
  std::unique_ptr<cuda::Gpu> gpu;  // checked; null: the CPU computes
  cuda::ExecutorOptions of_gpu;
};

// Opens the device that `options` asks for. With "auto" a GPU that cannot be used is told of, and
// the CPU computes. Errors: those of OpenCudaGpu and of its checks.
absl::StatusOr<OpenedDevice> OpenDevice(const ModelOptions& options);

// Makes the executor on `device`; `on_gpu` says whether it is one of a GPU, which then has all
// weights that are not streamed. `file`, `facts`, `tap` and `stream` (null: all weights stay in
// memory) must outlive it. Errors: INVALID_ARGUMENT (threads out of range, a kernel target that
// cannot run here), RESOURCE_EXHAUSTED (no room on the GPU, unless "auto" goes on with the CPU).
absl::StatusOr<std::unique_ptr<Executor>> ChooseExecutor(
    OpenedDevice device, const PackedFile& file, const ModelFacts& facts,
    const ModelOptions& options,
    const std::function<void(int32_t layer, std::span<const float> hidden)>& tap,
    WeightStream* stream, bool* on_gpu);

// Checks target and threads before any file is read. Returns the thread count: options.threads, or
// one per core if that is 0. Errors: as ChooseExecutor.
absl::StatusOr<int> CheckDevice(const ModelOptions& options);

}  // namespace withy::engine
