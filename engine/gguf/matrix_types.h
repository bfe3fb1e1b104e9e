// Chooses the tensor types of the matrices of an elastic file. Neighbours: weights/overlay.cc and
// offline/elastic/ write such files.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"

namespace withy::engine {

// One type for all matrices; nullopt: each keeps its source type, or gets the nearest writable
// type.
using MatrixType = std::optional<GgmlType>;

// Parses "q8_0", "q4_0", "q4_1", "f16", "bf16", "f32"; "" and "auto" are nullopt. Errors:
// INVALID_ARGUMENT listing them.
absl::StatusOr<MatrixType> FindMatrixType(std::string_view name);

// F32, F16, BF16.
bool IsFloatType(GgmlType type);

// The writable type that loses least of a tensor of type `source` at about its size: the same type
// if it is quantised and writable; Q4_1 for Q4_K; Q8_0 for other types of 5 bits and more, and for
// floats, which are quantised for the first time.
GgmlType NearestType(GgmlType source);

// Type of matrix `info` in the elastic file. `moved`: its rows or columns are reordered. A matrix
// that is not moved, such as the embedding, keeps its type if `type` is nullopt and it is
// quantised.
GgmlType TypeOf(const TensorInfo& info, MatrixType type, bool moved);

// Whether a tensor is a matrix, whose type can be chosen.
bool IsMatrix(const TensorInfo& info);

}  // namespace withy::engine
