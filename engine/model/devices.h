// Where the device that computes a model is chosen: an executor for another device is a folder
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

namespace withy::engine {

// What is passed in outlives the executor. Errors: INVALID_ARGUMENT (threads out of range, a kernel
// target that cannot run here).
absl::StatusOr<std::unique_ptr<Executor>> ChooseExecutor(
    const PackedFile& file, const ModelFacts& facts, const ModelOptions& options,
    const std::function<void(int32_t layer, std::span<const float> hidden)>& tap);

// Threads that `options` asks for: 0 is one a core. Errors: as ChooseExecutor, before a file is
// read.
absl::StatusOr<int> CheckDevice(const ModelOptions& options);

}  // namespace withy::engine
