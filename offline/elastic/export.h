// Writes an elasticized model as a GGUF that a plain runtime loads with unchanged logits: reordered
// weights under their own names, levels and LoRA in withy.* (docs/formats-elastic.md). Neighbour:
// job.cc.
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

// Writes what elasticizing found as an overlay of `source` (engine/weights/overlay.h), and the
// elastic model that it makes of it. `type` is the type of the matrices (matrix_types.h). Errors:
// INVALID_ARGUMENT (an unsupported type); as engine::ApplyOverlay.
absl::Status ExportElastic(const engine::GgufFile& source, const Network& network,
                           const std::vector<ElasticLevel>& levels, int32_t lora_rank,
                           const Findings& findings, MatrixType type, const std::string& overlay,
                           const std::string& path);

}  // namespace withy::elastic
