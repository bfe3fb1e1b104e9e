// Says whether a model's weights have room in memory, and what would have if they do not: a smaller
// type, a weight budget. Pure. Neighbours: model/open.cc asks before weights take memory;
// base/memory_limits.h says what there is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/memory_limits.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {

// What a packed model's data takes if its file has another type.
struct TypeSize {
  std::string_view type;  // of the GGUF
  uint64_t bytes = 0;
};

// Sizes in F16, Q8_0 and Q4_0, as far as they are smaller than the model is; the largest first.
// Matrices that take less already stay. In a Q4_0 file, the output head has 8 bits: llama-quantize
// gives it six, which are packed as eight.
std::vector<TypeSize> SmallerTypes(std::span<const PackedTensor> tensors);

// What a model wants of memory.
struct WeightNeed {
  std::span<const PackedTensor> tensors;
  uint64_t data_bytes = 0;    // of all weights
  uint64_t budget_bytes = 0;  // weight_budget_bytes; 0: none, all weights are to be in memory
  uint64_t least_budget_bytes = 0;
};

// What the owner of the model can do where its weights have only `room_bytes`.
std::string WhatFits(const WeightNeed& need, uint64_t room_bytes);

// Checks the weights and a pass's buffers against the limits. A budget is taken from memory at
// once, and a kernel that has no room for it kills the process: of a cgroup's limit, what is free
// counts. The board may have swap: of it, what it has in all counts. Weights without a budget are
// mapped, and the kernel may take them back: they must have room once nothing else has. Errors:
// RESOURCE_EXHAUSTED naming the bytes needed, the limit, what is free, and WhatFits.
absl::Status CheckWeightRoom(const WeightNeed& need, std::span<const MemoryLimit> limits);

}  // namespace withy::engine
