// Says which tensor types of the matrices an elastic file will have. Neighbours:
// engine/gguf/matrix_types.h chooses them, export.h writes them, main.cc parses --type.
#pragma once

#include <string>

#include "engine/gguf/matrix_types.h"
#include "engine/gguf/reader.h"

namespace withy::elastic {

using engine::FindMatrixType;
using engine::IsMatrix;
using engine::MatrixType;

// One line about the types to write: "matrices of layers stay as they are, but ffn_down …". Warns
// where quantised weights are quantised again.
std::string DescribeTypes(const engine::GgufFile& source, MatrixType type);

}  // namespace withy::elastic
