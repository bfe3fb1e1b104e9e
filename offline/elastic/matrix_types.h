// Which type each matrix of an elastic file gets. Neighbours: export.h writes them, main.cc reads
// --type.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"

namespace withy::elastic {

// One type for all matrices, or nothing: each as it is in the source, or the nearest type that can
// be written.
using MatrixType = std::optional<engine::GgmlType>;

// "q8_0", "q4_0", "q4_1", "f16", "bf16", "f32"; "" and "auto" are nothing. Errors: INVALID_ARGUMENT
// listing them.
absl::StatusOr<MatrixType> FindMatrixType(std::string_view name);

// The type that can be written and loses least of what a tensor of type `source` holds at about its
// size: itself where it is quantised and can be written; Q4_1 for Q4_K, Q8_0 for 5 bits and more
// and for floats, which are quantised for the first time.
engine::GgmlType NearestType(engine::GgmlType source);

// Of the matrix `info` in the elastic file. `moved`: its rows or columns change places; others,
// such as the embedding, keep the type that they have where `type` is nothing and they are
// quantised.
engine::GgmlType TypeOf(const engine::TensorInfo& info, MatrixType type, bool moved);

// Whether a tensor is a matrix that gets a type of its own.
bool IsMatrix(const engine::TensorInfo& info);

// What is to be written, in a line: "matrices are written as Q4_1, as they are in plain.gguf; ...".
// Also what is lost on the way where weights are quantised already.
std::string DescribeTypes(const engine::GgufFile& source, MatrixType type);

}  // namespace withy::elastic
