// What an elastic model's levels were chosen by, as plots. Neighbours: inspect.h says the rest of
// a file in text; offline/elastic/export.h writes what is plotted (docs/formats-elastic.md).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::cli {

// Writes unit-importance.svg, layer-importance.svg and loss-per-level.svg into `directory`, as far
// as the GGUF says what they need. Returns their paths. Errors: of opening and writing; NOT_FOUND
// when the file says nothing of it; INVALID_ARGUMENT when its arrays do not fit its shape.
absl::StatusOr<std::vector<std::string>> WritePlots(const std::string& gguf,
                                                    const std::string& directory);

}  // namespace withy::cli
