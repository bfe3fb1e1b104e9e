// Whether a draft model speaks the target's vocabulary, which one that drafts for it has to.
// Neighbours: process.cc decides by it whether the draft is served.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace withy::draft_worker {

// Why the model of `draft_path` cannot draft for that of `target_path`; "" = their vocabularies are
// one. Reads the metadata of both files. Errors: as GgufFile::Open and MakeTokenizer.
absl::StatusOr<std::string> WhyNoDraftFor(const std::string& draft_path,
                                          const std::string& target_path);

}  // namespace withy::draft_worker
