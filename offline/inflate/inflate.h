// Grows a small trained model to a published shape without changing its function: wider and deeper,
// the same logits at every level, so that accuracy is a trained model's and bytes and FLOPs are a
// large model's. Neighbours: placement.h says where the real units stand; withy-elasticize makes
// the levels that are carried over. Needs no LibTorch; copies quantised blocks and never rounds
// weights again.
//
// How the function is kept: dimensions of the residual stream beyond the small model's stay zero
// (their rows of the embedding, O and down are), and the norms' weights and epsilon make up for the
// longer vector; heads and neurons beyond the small model's meet zero columns of O and down; layers
// beyond the small model's have O and down of zeros. Everything else that is added is random.
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

// smollm2-135m, smollm2-360m, tinyllama-1.1b.
std::vector<std::string> TargetShapeNames();
// Errors: NOT_FOUND listing the names.
absl::StatusOr<TargetShape> FindTargetShape(std::string_view name);

// `name` goes behind general.name. Weights keep their types. `progress`: (bytes written, bytes in
// all). Errors: as engine::ReadShape, engine::ReadLevels and Place(); UNIMPLEMENTED naming a tensor
// that the architecture lacks or whose type has blocks of more than 32; those of GgufWriter::Write.
absl::Status Inflate(const engine::GgufFile& source, const TargetShape& target,
                     std::string_view name, uint64_t seed, const std::string& path,
                     const std::function<void(uint64_t, uint64_t)>& progress = nullptr);

}  // namespace withy::inflate
