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
using engine::NearestType;
using engine::TypeOf;

// One line about the types to write: "matrices are written as Q4_1, as they are in plain.gguf;
// ...". Also mentions the loss of requantising already quantised weights.
std::string DescribeTypes(const engine::GgufFile& source, MatrixType type);

}  // namespace withy::elastic
