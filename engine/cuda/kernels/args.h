// Arguments of the CUDA kernels: plain structs of device addresses, for the host and the device.
// Neighbours: kernels.h launches, *-inl.cuh compute, lower.cc fills these in. All addresses are of
// device memory; lists by row are in the order of the planned rows unless they say otherwise.
#pragma once

#include <cstdint>

#include "engine/cpu/types.h"
#include "engine/kv/block.h"
#include "engine/kv/memory.h"

namespace withy::engine::cuda {

inline constexpr int kGroupBlocks = 4;  // blocks of 32 inputs whose fragments are loaded together
inline constexpr int kGroupInputs = 128;
inline constexpr int kStripTiles = 2;  // tiles of 16 outputs that a thread block computes
inline constexpr int kStripOutputs = 32;
inline constexpr int kParts = 8;  // warps of a block: each sums every eighth group
inline constexpr int kThreads = 256;
inline constexpr int kRunKeys = 256;  // positions that attention reduces together
inline constexpr int kRunGroups = 16;
inline constexpr int kHeadsAtOnce = 8;  // query heads that share the reading of keys, of one row
inline constexpr int kMaxBiasPairs = 32;
inline constexpr int kTileQueries = 64;  // queries that share the reading of keys in a tile
inline constexpr int kPartExtra = 32;    // floats beside a run's output: maximum, sum, densities

// A matrix in fragment order, W[n_out, n_in]. Quantised: for each tile of 16 outputs and block of
// 32 inputs, lane 4g + t has the quants of the rows g and g + 8, input quads t and t + 4, as
// mma.m16n8k32 takes them.
//   kQ8:  [tile][block][lane][row g quad t, row g + 8 quad t, row g quad t + 4, row g + 8 quad t +
//   4] kQ4, kQ4M: [tile][two blocks][lane][block][rows g, g + 8]: words of quad t in the low and
//   quad
//         t + 4 in the high halves of bytes
//   scales, minima: f16 [tile][group][g][block][rows g, g + 8]
//   kF16, kBf16: [tile][block][rows g, g + 8][lane][8 inputs from 8t on]; kF32: twice four inputs
struct Matrix {
  WeightType type = WeightType::kF32;
  int n_out = 0;
  int n_in = 0;
  int tiles = 0;
  int blocks = 0;
  int groups = 0;
  uint8_t* quants = nullptr;
  uint16_t* scales = nullptr;
  uint16_t* mins = nullptr;
};

// The type of a Matrix with these packed weights: indices of a table become quants of 8 bits.
constexpr WeightType DeviceType(WeightType packed) {
  return HasTable(packed) ? WeightType::kQ8 : packed;
}

// A matrix in a packed file (cpu/packed_matrix.h), in device memory.
struct PackedArgs {
  const uint8_t* data = nullptr;
  WeightType from = WeightType::kF32;
  Matrix to = {};
  int panel_inputs = 0;
  int panels = 1;
  int first_tile = 0;  // the first tile of `data`, and of `to`; 0 if there are several panels
  int tiles = 0;       // of each panel that are to be converted
  int blocks = 0;      // of inputs that are to be converted
};

// Input rows of products. Quantised: for each group the bytes
// [half of the group][t][block of the half][quads t, t + 4][4], scales and sums of quants by block.
// `floats`: the same numbers for matrices of floats. Norms are applied but for the row's factor,
// which a product multiplies its sums with: `squares` has the sum of squares of each block.
struct Inputs {
  int8_t* quants = nullptr;
  float* scales = nullptr;
  int32_t* sums = nullptr;
  float* floats = nullptr;
  float* squares = nullptr;
  int groups = 0;  // that a row has room for
};

// B of a LoRA (cpu/low_rank.h).
struct LowRank {
  int rank = 0;
  int outputs = 0;
  const uint8_t* data = nullptr;
};
// Rows [first, first + rows) add B * a; `a` is that of row 0.
struct LowRankRun {
  int first = 0;
  int rows = 0;
  LowRank b[3] = {};  // kStoreKv: Q, K, V; kGateUp: gate, up; else one
  int a_offset[3] = {};
};

// Where a stamp goes (stamp-inl.cuh).
struct StampArgs {
  uint64_t* to = nullptr;
};

// Memory that is checked (memory-inl.cuh): word `index` holds MemoryPattern.
constexpr uint32_t MemoryPattern(uint32_t index, uint32_t seed) {
  return index * 2654435761u + seed;
}
struct MemoryArgs {
  uint8_t* memory = nullptr;
  int64_t count = 0;  // of 16 bytes
  uint32_t seed = 0;
  int blocks = 0;
  int32_t* wrong = nullptr;  // by block: words that are not the pattern's
};

struct EmbedArgs {
  Matrix embedding = {};
  const float* fetched = nullptr;  // [rows, width]: in place of the embedding
  const int32_t* tokens = nullptr;
  float* x = nullptr;
  int width = 0;
};

// x += pending LoRA; `to` row map[i] = x row i, times `weight`.
struct NormArgs {
  float* x = nullptr;
  int width = 0;
  const float* weight = nullptr;
  const int32_t* map = nullptr;  // null: the same row
  Inputs to = {};
  const LowRankRun* runs = nullptr;
  int run_count = 0;
  const float* a = nullptr;
  int a_stride = 0;
  bool quantise = false;
  bool keep_floats = false;
  float* added =
      nullptr;  // not null: x + LoRA goes here, x is not changed, and nothing else is done
};

struct Product {
  Matrix w = {};
  Matrix up = {};  // gate and up: `w` is gate; the outputs are inputs of down, `neurons`
  Inputs x = {};
  int x_row = 0;
  int rows = 0;
  int strips = 0;       // of outputs that some row computes
  int first_strip = 0;  // index of the first thread block
  float* y = nullptr;   // of row 0
  int64_t y_stride = 0;
  bool add = false;
  bool normed = false;  // times the row's norm factor
  float epsilon = 0;
  const int32_t* out_extent = nullptr;  // by row; null: all
  const int32_t* in_extent = nullptr;
  // Gate and up.
  Inputs neurons = {};
  const LowRankRun* runs = nullptr;
  int run_count = 0;
  const float* a = nullptr;
  int a_stride = 0;
  bool quantise = false;
  bool keep_floats = false;
  // What the next norm reads, where the outputs are the residual stream: null: nothing.
  const float* next_weight = nullptr;
  Inputs next = {};
};
struct ProductArgs {
  const Product* products = nullptr;
  int count = 0;
  int strips = 0;  // of all products
  int rows = 0;    // of the product with most
};

// Outputs of products that are multiplied as F16 at once: enough tiles for a large card's units,
// few enough that their sums stay in its cache.
inline constexpr int kDenseColumns = 4096;

// Products of the same rows as one of F16 matrices. The columns are the outputs of the strips
// [first_strip, first_strip + strips) of all products one behind the other: 32 of a strip; of gate
// and up 32 of gate, then 32 of up. What is multiplied is scaled by powers of two, a row of inputs
// and a column's weights each by its own, so that no number is out of F16's range.
struct DenseArgs {
  const Product* products = nullptr;  // with the same inputs and rows
  int count = 0;
  int first_strip = 0;
  int strips = 0;
  int rows = 0;
  int blocks = 0;  // of 32 inputs that are multiplied: those of the row with most
  bool fused = false;
  bool from_floats = false;         // Inputs::floats are read, else the quants
  uint16_t* weights = nullptr;      // [columns, 32 * blocks]
  uint16_t* inputs = nullptr;       // [rows, 32 * blocks]
  float* weight_factors = nullptr;  // that undo the scales, by column
  float* input_factors = nullptr;   // by row
  const float* sums = nullptr;      // [rows, columns]
};

struct Row {
  int32_t token = 0;
  int32_t position = 0;
  int32_t slot = 0;
  int32_t context = 0;
  int32_t tail_group = -1;  // as PlannedRow
  int32_t tail_first = 0;
};
struct Context {
  const KvBlockName* blocks = nullptr;  // [chunk * layers + layer]
  uint8_t* memory = nullptr;
  // Where K and V are written, too; null: nowhere.
  const KvBlockName* host_blocks = nullptr;
  uint8_t* host_memory = nullptr;
};
// A block that is copied: addresses aligned to 64 bytes, a multiple of 64 bytes.
struct KvCopy {
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
  int64_t bytes = 0;
};
struct KvCopyArgs {
  const KvCopy* copies = nullptr;
  int count = 0;
};
// Places of the parts of head 0 in a block (kv/block.h), and bytes of a head.
struct KvPlaces {
  uint32_t head_bytes = 0;
  uint32_t k_scale = 0;
  uint32_t v_scale = 0;
  uint32_t zero = 0;
  uint32_t k_mean = 0;
  uint32_t units = 0;
  uint32_t k = 0;
  uint32_t v = 0;
};
// Of a format other than kEmpty.
inline KvPlaces PlacesOf(const KvGeometry& geometry, KvFormat format) {
  const KvOffsets at = geometry.Offsets(format, 0);
  return {.head_bytes = static_cast<uint32_t>(geometry.HeadBytes(format)),
          .k_scale = static_cast<uint32_t>(at.k_scale),
          .v_scale = static_cast<uint32_t>(at.v_scale),
          .zero = static_cast<uint32_t>(at.zero),
          .k_mean = static_cast<uint32_t>(at.k_mean),
          .units = static_cast<uint32_t>(at.units),
          .k = static_cast<uint32_t>(at.k),
          .v = static_cast<uint32_t>(at.v)};
}
struct BiasPair {
  int32_t first = 0;
  int32_t second = 0;
  int32_t angle = 0;
  float bias_first = 0;
  float bias_second = 0;
};
struct KeyBiasTables {
  const BiasPair* pairs = nullptr;  // [kv_heads, kMaxBiasPairs]; null: keys are stored whole
  const int32_t* counts = nullptr;
  const float* in_run = nullptr;
  const float* of_run = nullptr;
  int angles = 0;
};

struct Shape {
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotation = 0;  // dimensions that are rotated together
  bool rank_major = false;
  bool interleaved = false;
  float scale = 0;  // of q.k
  float epsilon = 0;
};

// Queries as attention reads them, by row and head.
struct Queries {
  int8_t* q = nullptr;       // [row, head, head_dim]
  float* rotated = nullptr;  // the same as floats; null: no context has blocks of 16 bits
  float* scale = nullptr;    // [row, head]
  int32_t* sum = nullptr;
  float* bias = nullptr;  // [row, head, kMaxBiasPairs, 2]; null: no key bias
};

struct StoreKvArgs {
  Shape shape = {};
  int layer = 0;
  int rows = 0;
  int first_query = 0;
  int queries = 0;
  const Row* row = nullptr;
  const Context* contexts = nullptr;
  const KvPlaces* places = nullptr;  // by KvFormat
  const int32_t* kv_extent = nullptr;
  const int32_t* q_extent = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  float* q = nullptr;
  const float* angles = nullptr;  // [row, 2 * head_dim]
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* q_bias = nullptr;
  const float* k_norm = nullptr;
  const float* q_norm = nullptr;
  const LowRankRun* runs = nullptr;
  int run_count = 0;
  const float* a = nullptr;
  int a_stride = 0;
  KeyBiasTables bias = {};
  Queries to = {};
};

// A token whose K and V tree rows see in another slot.
struct TailCopy {
  int32_t context = 0;
  int32_t slot = 0;
  int32_t to_block = 0;
  int32_t to_slot = 0;
};
struct GatherArgs {
  Shape shape = {};
  int layer = 0;
  int count = 0;
  const TailCopy* copies = nullptr;
  const Context* contexts = nullptr;
  const KvPlaces* places = nullptr;
  uint8_t* tail = nullptr;
  uint32_t block_bytes = 0;
};

struct KeepArgs {
  float* x = nullptr;
  int width = 0;
  const int32_t* wanted = nullptr;
  int count = 0;
};

// Attention of rows [first, first + rows) of an operation to runs [first_run, first_run + runs) of
// one context's keys. In these runs, the rows read the same blocks and compute as many heads.
struct AttendTile {
  int32_t first = 0;
  int32_t rows = 0;
  int32_t first_run = 0;
  int32_t runs = 0;           // 0: an empty tile
  int32_t last_position = 0;  // of the row that sees most
};

struct AttendArgs {
  Shape shape = {};
  int layer = 0;
  int first_row = 0;  // rows [first_row, first_row + rows)
  int rows = 0;
  const AttendTile* tiles = nullptr;
  int tile_count = 0;
  int tile_rows = 0;  // of the tile with most
  int tile_runs = 0;
  int runs = 0;  // of the row that sees most
  const Row* row = nullptr;
  const int32_t* wanted = nullptr;  // index of each row among the planned ones; null: the same
  const Context* contexts = nullptr;
  const KvPlaces* places = nullptr;
  const uint8_t* tail = nullptr;
  uint32_t block_bytes = 0;
  const int32_t* head_extent = nullptr;
  Queries queries = {};
  KeyBiasTables bias = {};
  float* parts = nullptr;  // [row - first_row, head, run, head_dim + kPartExtra]
  bool densities = false;
  // The merge.
  Inputs to = {};
  bool quantise = false;
  bool keep_floats = false;
  float* density = nullptr;  // [planned row, head, density_stride], added to
  int density_stride = 0;
};

}  // namespace withy::engine::cuda
