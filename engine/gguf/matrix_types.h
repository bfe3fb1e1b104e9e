// Chooses the tensor types of the matrices of an elastic file. Neighbours: weights/overlay.cc and
// offline/elastic/ write such files.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"

namespace withy::engine {

// One type for all matrices; nullopt: each keeps its type where that is possible.
using MatrixType = std::optional<GgmlType>;

// Parses "q8_0", "q4_0", "q4_1", "f16", "bf16", "f32"; "" and "auto" are nullopt. Errors:
// INVALID_ARGUMENT listing them.
absl::StatusOr<MatrixType> FindMatrixType(std::string_view name);

// F32, F16, BF16.
bool IsFloatType(GgmlType type);

// Whether a tensor is a matrix, whose type can be chosen.
bool IsMatrix(const TensorInfo& info);

}  // namespace withy::engine
