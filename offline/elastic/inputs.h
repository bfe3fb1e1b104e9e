// What withy-elasticize and withy-baselines do alike: read text, warn of a poor start, report
// LibTorch's errors. Neighbours: batches.h makes the batches.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "offline/elastic/batches.h"

namespace withy::elastic {

// Batches of the text file `text`, or of the corpus where it is empty. Says on stderr when the text
// holds fewer than options.count, which `flag` asks for. Errors: as TextBatches and CorpusBatches.
absl::StatusOr<std::vector<Batch>> ReadBatches(const std::string& program,
                                               const engine::GgufFile& model,
                                               const std::string& text, const std::string& flag,
                                               const BatchOptions& options);

// On stderr, when matrices are of a type that has lost something already.
void WarnIfQuantised(const std::string& program, const engine::GgufFile& file);

// LibTorch throws where it cannot go on, such as without memory. INTERNAL with what it says, less
// the stack behind the first line.
absl::Status FromLibTorch(const std::exception& error);

}  // namespace withy::elastic
