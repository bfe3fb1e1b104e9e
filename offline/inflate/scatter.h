// Moves the weights of one matrix to their positions in a larger one, block by block, and fills the
// rest. Neighbour: inflate.cc plans the moves. Copies stored blocks without rounding.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"
#include "engine/gguf/writer.h"
#include "offline/inflate/placement.h"

namespace withy::inflate {

// Content of added positions.
enum class Filler { kZero, kRandom };

// Source index of each position; -1: filled.
using Map = std::vector<int32_t>;

Map Identity(int64_t count);

// Map of `room` units of `width` consecutive items each, placed at `places`; units placed beyond
// `room` are left out.
Map Expand(const std::vector<int32_t>& places, int32_t room, int32_t width);

struct ScatterPlan {
  Map rows;
  Map blocks;  // of kBlock columns
  Filler missing_rows = Filler::kRandom;
  Filler missing_blocks = Filler::kRandom;
};

class RandomBlocks;

// The returned sources refer to the file.
class Scatterer {
 public:
  Scatterer(const engine::GgufFile& source, uint64_t seed) : source_(source), seed_(seed) {}

  // Source of the larger tensor `name`. Errors: UNIMPLEMENTED naming the tensor if kBlock is not a
  // multiple of its type's block.
  absl::StatusOr<engine::TensorSource> Scatter(const engine::TensorInfo& tensor,
                                               const std::string& name, ScatterPlan plan);

 private:
  absl::StatusOr<std::shared_ptr<const RandomBlocks>> BlocksOf(const engine::TensorInfo& tensor);

  const engine::GgufFile& source_;
  const uint64_t seed_;
  std::map<engine::GgmlType, std::shared_ptr<const RandomBlocks>> random_;
};

}  // namespace withy::inflate
