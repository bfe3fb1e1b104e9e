// Writes an elasticized model as a GGUF that a plain runtime loads with unchanged logits: reordered
// weights under their own names, levels and LoRA in withy.* (docs/formats-elastic.md). Quantises
// after reordering. Neighbour: job.cc.
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

// Measurements that the levels were chosen by, stored in the file for inspection. Empty members are
// omitted.
struct Findings {
  std::vector<int32_t> anchors;       // layers by importance
  std::vector<double> layers;         // importance per layer
  std::vector<UnitImportance> units;  // [layers]
  double whole_loss = 0;
  std::vector<double> losses;       // [levels], without LoRA
  std::vector<double> lora_losses;  // [levels], with it
};

// `source` provides the metadata and all unchanged tensors. `type` is the type of the matrices
// (matrix_types.h); vectors keep theirs. If a matrix keeps its type, blocks of 32 weights that only
// moved are copied, not requantised. Errors: INVALID_ARGUMENT (an unsupported type); those of
// GgufWriter::Write.
absl::Status ExportElastic(const engine::GgufFile& source, const Network& network,
                           const std::vector<ElasticLevel>& levels, int32_t lora_rank,
                           const Findings& findings, MatrixType type, const std::string& path);

}  // namespace withy::elastic
