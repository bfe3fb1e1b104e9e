// Grows a small trained model to a published shape without changing its function: wider and deeper
// with the same logits at every level. Accuracy is that of a trained model, bytes and FLOPs are
// those of a large one. Neighbours: placement.h places the source's units; withy-elasticize makes
// the levels. Needs no LibTorch; copies quantised blocks without rounding.
//
// Added dimensions of the residual stream stay zero (zero rows of the embedding, O and down), and
// the norms' weights and epsilon compensate for the longer vector. Added heads and neurons meet
// zero columns of O and down. Added layers have zero O and down. All other added weights are
// random.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "offline/inflate/placement.h"

namespace withy::inflate {

// smollm2-135m, smollm2-360m, tinyllama-1.1b, llama3.2-3b.
std::vector<std::string> TargetShapeNames();
// Errors: NOT_FOUND listing the names.
absl::StatusOr<TargetShape> FindTargetShape(std::string_view name);

// Appends `name` to general.name. Weights keep their types. `progress`: (bytes written, total
// bytes). Errors: as engine::ReadShape, engine::ReadLevels and Place(); UNIMPLEMENTED naming a
// tensor that the architecture lacks or whose type has blocks of more than 32; those of
// GgufWriter::Write.
absl::Status Inflate(const engine::GgufFile& source, const TargetShape& target,
                     std::string_view name, uint64_t seed, const std::string& path,
                     const std::function<void(uint64_t, uint64_t)>& progress = nullptr);

}  // namespace withy::inflate
