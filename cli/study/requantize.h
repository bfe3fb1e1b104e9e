// Writes a model with its matrices in another type, to see what the type costs and gains.
// Neighbours: engine/gguf converts blocks; offline/elastic quantises the models that it makes.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/types.h"

namespace withy::cli {

// "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1". Errors: INVALID_ARGUMENT listing them.
absl::StatusOr<engine::GgmlType> FindWritableType(std::string_view name);

// Writes the GGUF `from` to `to` with all matrices as `type`; vectors keep theirs, and so do
// matrices whose rows are no multiple of the type's block. An elastic model's levels are left out.
// Errors: as GgufFile::Open and GgufWriter::Write; INVALID_ARGUMENT naming a tensor that cannot be
// decoded, or if `from` is a packed file.
absl::Status Requantize(const std::string& from, engine::GgmlType type, const std::string& to);

}  // namespace withy::cli
