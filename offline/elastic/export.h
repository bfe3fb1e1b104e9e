// Writes an elasticized model as a GGUF that a plain runtime loads with the same logits: reordered
// weights under their own names, levels and LoRA in withy.* (docs/formats-elastic.md). Neighbours:
// main.cc. Quantises after reordering.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/matrix_types.h"
#include "offline/elastic/network.h"

namespace withy::elastic {

// What the levels were chosen by; noted in the file for inspection. Empty members are left out.
struct Findings {
  std::vector<int32_t> anchors;       // layers by importance
  std::vector<double> layers;         // importance of each
  std::vector<UnitImportance> units;  // [layers]
  double whole_loss = 0;
  std::vector<double> losses;       // [levels], without LoRA
  std::vector<double> lora_losses;  // [levels], with it
};

// `source` gives the metadata and what was not touched. `type` is that of the matrices
// (matrix_types.h); vectors stay as they are in `source`. Where a matrix keeps its type, blocks of
// 32 weights that only changed places are copied, not quantised again. Errors: INVALID_ARGUMENT (a
// type that cannot be written); those of GgufWriter::Write.
absl::Status ExportElastic(const engine::GgufFile& source, const Network& network,
                           const std::vector<ElasticLevel>& levels, int32_t lora_rank,
                           const Findings& findings, MatrixType type, const std::string& path);

}  // namespace withy::elastic
