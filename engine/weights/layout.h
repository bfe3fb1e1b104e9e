// Plans the packed file of a GGUF: its tensors, their order, and the order of their rows and
// columns. Pure; touches no tensor bytes. Neighbours: packer.h executes the plan, packed_file.h
// reads the result.
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
  const TensorInfo* source = nullptr;  // in the GGUF; null for computed RoPE frequencies
  // Source row (or vector element) of each packed row; empty: unchanged order.
  std::vector<int32_t> row_order;
  // Source block (32 columns) of each packed block; empty: unchanged order.
  std::vector<int32_t> block_order;
};

struct PackedLayout {
  ModelShape shape;
  LevelTable levels;
  std::vector<LayoutItem> items;  // in file order, offsets set
  uint64_t data_bytes = 0;
};

// Maps packed position to query head. With three or more query heads per KV head the order is
// rank-major, [rank][group], so that a prefix has equally many query heads of every group.
// Otherwise it is the file's order, where a prefix has whole KV heads with their query heads
// (docs/method-elastic.md, Units).
std::vector<int32_t> QueryHeadOrder(int32_t heads, int32_t kv_heads);

// Inputs per panel of a matrix whose inputs are cut in multiples of `unit` (a multiple of 32): the
// largest multiple of 32 up to 256 that divides `unit`, so that every cut falls between panels.
int32_t PanelInputs(int32_t unit);

// Inputs per panel of ffn_down, which is also the step in which levels cut neurons: as PanelInputs,
// but small models get at least eight panels, each of 64 inputs or more.
int32_t NeuronPanel(int32_t d_ff);

// Errors: as RecogniseFile and ReadShape; NOT_FOUND (a tensor is missing), INVALID_ARGUMENT (a
// wrong shape, or a tensor that the architecture lacks), UNIMPLEMENTED (tensor types that cannot be
// packed; the message lists the supported ones). One status names all that is found.
absl::StatusOr<PackedLayout> PlanLayout(const GgufFile& file);
// The same; adds to `problems` each thing that is against the file.
absl::StatusOr<PackedLayout> JudgeLayout(const GgufFile& file, std::vector<absl::Status>* problems);

}  // namespace withy::engine
