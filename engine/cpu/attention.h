// Arguments of the attention kernel: rows of many contexts over KV blocks of any format, several
// query heads per KV head. Neighbours: Kernels::attention computes a range of items, parallel.h
// splits them over the pool, Kernels::write_kv writes K and V. Batch-invariant: a row's result
// depends only on its query and its visible keys, reduced in groups of 16 and runs of 256
// positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kv/block.h"
#include "engine/kv/memory.h"

namespace withy::engine {

// One query row. It sees the keys at positions 0 .. visible-1 of its context; key p is slot p % 16
// of the block that blocks[p / 16 * block_stride] names in `memory`, in the format of that name.
//
// A row of a token tree sees committed keys and its ancestors, whose slots are scattered. The
// caller copies K and V from group tail_group on into scratch blocks (CopyToken), one block for
// each group of 16 positions, of kQ8. Group g >= tail_group is then read from tail[g - tail_group].
struct AttentionRow {
  const std::byte* memory = nullptr;    // KvMemory::base of the context's blocks
  const KvBlockName* blocks = nullptr;  // this layer's blocks of the row's context, by chunk
  ptrdiff_t block_stride = 1;  // names between chunks: the number of layers in a table of all
  int visible = 0;             // >= 1
  const std::byte* const* tail = nullptr;
  int tail_group = 0;
};

// Neighbouring rows with the same `blocks` and no tail share the reading of keys, so the caller
// keeps the rows of a context together.
struct AttentionArgs {
  KvGeometry geometry;
  int q_heads = 0;  // a multiple of geometry.kv_heads
  float scale = 0;  // multiplies q.k, usually 1 / sqrt(head_dim)
  int rows = 0;
  const AttentionRow* row = nullptr;  // [rows]
  const float* q = nullptr;           // [rows, q_heads * head_dim], q_stride floats between rows
  ptrdiff_t q_stride = 0;
  // [rows, q_heads * head_dim], out_stride floats between rows; must not alias q.
  float* out = nullptr;
  ptrdiff_t out_stride = 0;
  // Order of query heads. False: head h reads KV head h / (q_heads / kv_heads), as in model files.
  // True: head h reads KV head h % kv_heads, so that a level is a prefix of the heads.
  bool rank_major = false;
  // Number of leading query heads that each row computes; the others are not written. A multiple of
  // kv_heads if rank_major, else of q_heads / kv_heads. nullptr: all.
  const int* head_extent = nullptr;
  // Optional information density: the sum of the attention probabilities that the KV head's query
  // heads give to the chunk's keys is added to
  // density[(row * kv_heads + kv_head) * density_stride + chunk], for the chunks that the row sees.
  // density_stride >= ceil(visible / 16).
  float* density = nullptr;
  ptrdiff_t density_stride = 0;
};

// Query vectors that one item takes through the keys together.
inline constexpr int kAttentionQueries = 32;

// The work splits into items, each a group of rows and one KV head. Items may run in any order and
// on any thread.
inline int AttentionRowsPerItem(const AttentionArgs& args) {
  const int group = args.q_heads / args.geometry.kv_heads;
  return group >= kAttentionQueries ? 1 : kAttentionQueries / group;
}
inline int AttentionItems(const AttentionArgs& args) {
  const int rows = AttentionRowsPerItem(args);
  return (args.rows + rows - 1) / rows * args.geometry.kv_heads;
}

}  // namespace withy::engine
