// Checks that a draft model has the target's vocabulary, which drafting requires. Neighbour:
// process.cc decides by it whether to serve the draft.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace withy::draft_worker {

// Reason why the model of `draft_path` cannot draft for that of `target_path`; "" = their
// vocabularies are equal. Reads the metadata of both files. Errors: as GgufFile::Open and
// MakeTokenizer.
absl::StatusOr<std::string> WhyNoDraftFor(const std::string& draft_path,
                                          const std::string& target_path);

}  // namespace withy::draft_worker
