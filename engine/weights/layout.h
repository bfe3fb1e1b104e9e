// What a packed file of a GGUF holds: which tensors, in which order, with which rows and columns
// where. Pure planning, no bytes. Neighbours: packer.h carries it out, packed_file.h reads the
// result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cpu/types.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "engine/weights/packed_format.h"
#include "engine/weights/shape.h"

namespace withy::engine {

// One tensor to pack.
struct LayoutItem {
  PackedEntry entry;
  const TensorInfo* source = nullptr;  // of the GGUF; null for rope_frequencies
  // Source row (or vector element) of each packed one; empty: as they are.
  std::vector<int32_t> row_order;
  // Source block of 32 columns of each packed one; empty: as they are.
  std::vector<int32_t> block_order;
};

struct PackedLayout {
  ModelShape shape;
  LevelTable levels;
  std::vector<LayoutItem> items;  // in file order, offsets set
  uint64_t data_bytes = 0;
};

// Packed place -> query head. With three or more query heads a KV head: rank-major, [rank][group],
// so that a level keeps a prefix that takes as many query heads from every group; else as in the
// file, where a prefix keeps whole KV heads with theirs (docs/method-elastic.md, Units).
std::vector<int32_t> QueryHeadOrder(int32_t heads, int32_t kv_heads);

// Inputs a panel of a matrix whose inputs are cut in multiples of `unit` (a multiple of 32): the
// largest multiple of 32 up to 256 that divides `unit`, so that every cut falls between panels.
int32_t PanelInputs(int32_t unit);

// Inputs a panel of ffn_down, and so the step in which a level cuts neurons: as above, but such
// that a small model, too, has at least eight panels to cut between, of 64 inputs or more.
int32_t NeuronPanel(int32_t d_ff);

// Errors: as ReadShape; NOT_FOUND (a tensor is missing), INVALID_ARGUMENT (a wrong shape, a tensor
// that the architecture does not have), UNIMPLEMENTED (a tensor type that cannot be packed; the
// message lists those that can).
absl::StatusOr<PackedLayout> PlanLayout(const GgufFile& file);

// The kernels' type for a file's type. Errors: UNIMPLEMENTED listing the types.
absl::StatusOr<WeightType> PackedTypeFor(GgmlType type);

}  // namespace withy::engine
