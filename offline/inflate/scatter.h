// Moves the weights of one matrix to their places in a larger one, block by block, and fills the
// rest. Neighbours: inflate.cc says what goes where. Copies stored blocks, rounds nothing.
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

// What stands where the small model has nothing.
enum class Filler { kZero, kRandom };

// Source index of each place; -1: filled.
using Map = std::vector<int32_t>;

Map Identity(int64_t count);

// Places of `room` units, each of `width` consecutive ones; units placed beyond it are left out.
Map Expand(const std::vector<int32_t>& places, int32_t room, int32_t width);

struct ScatterPlan {
  Map rows;
  Map blocks;  // of kBlock columns
  Filler missing_rows = Filler::kRandom;
  Filler missing_blocks = Filler::kRandom;
};

class RandomBlocks;

// Sources refer to the file.
class Scatterer {
 public:
  Scatterer(const engine::GgufFile& source, uint64_t seed) : source_(source), seed_(seed) {}

  // The rows of the larger tensor `name`. Errors: UNIMPLEMENTED for a type whose blocks are no part
  // of kBlock columns, naming the tensor.
  absl::StatusOr<engine::TensorSource> Scatter(const engine::TensorInfo& tensor,
                                               const std::string& name, ScatterPlan plan);

 private:
  absl::StatusOr<std::shared_ptr<const RandomBlocks>> BlocksOf(const engine::TensorInfo& tensor);

  const engine::GgufFile& source_;
  const uint64_t seed_;
  std::map<engine::GgmlType, std::shared_ptr<const RandomBlocks>> random_;
};

}  // namespace withy::inflate
