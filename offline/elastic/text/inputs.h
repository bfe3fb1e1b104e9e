// Shared by withy-elasticize and withy-baselines: reading text, warning about quantised inputs,
// reporting LibTorch's errors. Neighbour: batches.h makes the batches.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "offline/elastic/text/batches.h"

namespace withy::elastic {

// Batches of the text file `text`, or of the corpus if it is empty. Warns on stderr if the text has
// fewer than options.count batches, which `flag` sets. Errors: as TextBatches and CorpusBatches.
absl::StatusOr<std::vector<Batch>> ReadBatches(const std::string& program,
                                               const engine::GgufFile& model,
                                               const std::string& text, const std::string& flag,
                                               const BatchOptions& options);

// Warns on stderr if matrices are already quantised with loss.
void WarnIfQuantised(const std::string& program, const engine::GgufFile& file);

// Converts an exception of LibTorch (out of memory, for example) to INTERNAL with its message,
// without the stack trace after the first line.
absl::Status FromLibTorch(const std::exception& error);

}  // namespace withy::elastic
