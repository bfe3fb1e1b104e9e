// Plots the data that an elastic model's levels were chosen by. Neighbours: inspect.h describes a
// file as text; offline/elastic/export.h writes the data (docs/formats-elastic.md).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::cli {

// Writes unit-importance.svg, layer-importance.svg and loss-per-level.svg to `directory`, those for
// which the GGUF has data. Returns their paths. Errors: of opening and writing; NOT_FOUND if the
// file has no such data; INVALID_ARGUMENT if its arrays do not match its shape.
absl::StatusOr<std::vector<std::string>> WritePlots(const std::string& gguf,
                                                    const std::string& directory);

}  // namespace withy::cli
