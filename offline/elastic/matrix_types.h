// Chooses the tensor type of each matrix in an elastic file. Neighbours: export.h writes them,
// main.cc parses --type.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"

namespace withy::elastic {

// One type for all matrices; nullopt: each keeps its source type, or gets the nearest writable
// type.
using MatrixType = std::optional<engine::GgmlType>;

// Parses "q8_0", "q4_0", "q4_1", "f16", "bf16", "f32"; "" and "auto" are nullopt. Errors:
// INVALID_ARGUMENT listing them.
absl::StatusOr<MatrixType> FindMatrixType(std::string_view name);

// The writable type that loses least of a tensor of type `source` at about its size: the same type
// if it is quantised and writable; Q4_1 for Q4_K; Q8_0 for other types of 5 bits and more, and for
// floats, which are quantised for the first time.
engine::GgmlType NearestType(engine::GgmlType source);

// Type of matrix `info` in the elastic file. `moved`: its rows or columns are reordered. A matrix
// that is not moved, such as the embedding, keeps its type if `type` is nullopt and it is
// quantised.
engine::GgmlType TypeOf(const engine::TensorInfo& info, MatrixType type, bool moved);

// Whether a tensor is a matrix, whose type can be chosen.
bool IsMatrix(const engine::TensorInfo& info);

// One line about the types to write: "matrices are written as Q4_1, as they are in plain.gguf;
// ...". Also mentions the loss of requantising already quantised weights.
std::string DescribeTypes(const engine::GgufFile& source, MatrixType type);

}  // namespace withy::elastic
