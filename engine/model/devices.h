// Chooses the device that computes a model. To support another device, add an executor in a folder
// beside cpu/ and a line in devices.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/model/executor.h"
#include "engine/model/facts.h"
#include "engine/model/model.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

// Makes the executor that `options` asks for. `file`, `facts`, `tap` and `stream` (null: all
// weights stay in memory) must outlive it. Errors: INVALID_ARGUMENT (threads out of range, a kernel
// target that cannot run here).
absl::StatusOr<std::unique_ptr<Executor>> ChooseExecutor(
    const PackedFile& file, const ModelFacts& facts, const ModelOptions& options,
    const std::function<void(int32_t layer, std::span<const float> hidden)>& tap,
    WeightStream* stream);

// Checks target and threads before any file is read. Returns the thread count: options.threads, or
// one per core if that is 0. Errors: as ChooseExecutor.
absl::StatusOr<int> CheckDevice(const ModelOptions& options);

}  // namespace withy::engine
