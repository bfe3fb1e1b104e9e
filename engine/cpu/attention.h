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

// One query row. It sees the keys at positions first .. visible-1 of its context; key p is slot p %
// 16 of the block that blocks[p / 16 * block_stride] names in `memory`, in the format of that name.
//
// A row of a token tree sees committed keys and its ancestors, whose slots are scattered. The
// caller copies K and V from group tail_group on into scratch blocks (CopyToken), one block for
// each group of 16 positions, of kQ8. Group g >= tail_group is then read from tail[g - tail_group].
struct AttentionRow {
  const std::byte* memory = nullptr;    // KvMemory::base of the context's blocks
  const KvBlockName* blocks = nullptr;  // this layer's blocks of the row's context, by chunk
  ptrdiff_t block_stride = 1;  // names between chunks: the number of layers in a table of all
  int visible = 0;             // > first
  const std::byte* const* tail = nullptr;
  int tail_group = 0;
  int first = 0;
};

// Positions that attention reduces together; they start at multiples of it.
inline constexpr int kAttentionRunKeys = kAttentionRunTokens;

// The part of a layer's K bias that its keys are stored without: the bias of some pairs of
// dimensions that RoPE rotates. Attention adds q.R_p b to the score of the key at position p. For a
// query (x, y) in a pair that turns by the angle a and has the bias (b, c), that is
// (xb + yc) cos(pa) + (yb - xc) sin(pa).
inline constexpr int kMaxKeyBiasPairs = 32;
struct AttentionKeyBias {
  struct Pair {
    int32_t first = 0;  // dimensions of the head
    int32_t second = 0;
    int32_t angle = 0;  // index of the RoPE frequency
    float bias_first = 0;
    float bias_second = 0;
  };
  const Pair* pairs = nullptr;      // [kv_heads, kMaxKeyBiasPairs]
  const int32_t* counts = nullptr;  // [kv_heads]: how many of them
  // Cosines and sines, [angles, 2, kAttentionRunKeys] of the positions in a run, and
  // [runs, angles, 2] of the runs' first positions.
  const float* in_run = nullptr;
  const float* of_run = nullptr;
  int32_t angles = 0;
};

// Neighbouring rows with the same `blocks` and no tail share the reading of keys, so the caller
// keeps the rows of a context together.
struct AttentionArgs {
  KvGeometry geometry;
  int q_heads = 0;  // a multiple of geometry.kv_heads
  float scale = 0;  // multiplies q.k, usually 1 / sqrt(head_dim)
  float cap = 0;    // scores become cap * tanh(score / cap); 0: they stay
  // [q_heads]: a logit of each query head that is in the sum of its softmax and has no value, so
  // that probabilities add up to less than 1. nullptr: none.
  const float* sinks = nullptr;
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
  const AttentionKeyBias* key_bias = nullptr;  // of the layer; nullptr: keys are stored whole
  // Items that share the keys of a group of rows and a KV head, by runs. More than 1: each leaves
  // what it found in `parts` [AttentionPartFloats()], and Kernels::merge_attention makes `out` and
  // `density` of it. The bits are the same.
  int key_items = 1;
  float* parts = nullptr;
};

// Query vectors that one item takes through the keys together.
inline constexpr int kAttentionQueries = 32;

// The work splits into items, each a group of rows, one KV head, and some of the keys. Items may
// run in any order and on any thread.
inline int AttentionRowsPerItem(const AttentionArgs& args) {
  const int group = args.q_heads / args.geometry.kv_heads;
  return group >= kAttentionQueries ? 1 : kAttentionQueries / group;
}
inline int AttentionMergeItems(const AttentionArgs& args) {
  const int rows = AttentionRowsPerItem(args);
  return (args.rows + rows - 1) / rows * args.geometry.kv_heads;
}
inline int AttentionItems(const AttentionArgs& args) {
  return AttentionMergeItems(args) * args.key_items;
}

// Runs of the row that sees most.
inline int AttentionRuns(const AttentionArgs& args) {
  int visible = 0;
  for (int i = 0; i < args.rows; ++i) {
    visible = args.row[i].visible > visible ? args.row[i].visible : visible;
  }
  return (visible + kAttentionRunKeys - 1) / kAttentionRunKeys;
}
// The best key_items for so many threads: 1 where groups of rows and KV heads keep all of them busy
// equally long.
inline int AttentionKeyItems(const AttentionArgs& args, int threads) {
  constexpr int kItemsPerThread = 6;
  const int items = AttentionMergeItems(args);
  const bool balanced = items % threads == 0 || items >= kItemsPerThread * threads;
  const bool one_batch = args.q_heads / args.geometry.kv_heads <= kAttentionQueries;
  if (balanced || !one_batch) return 1;
  const int wanted = (kItemsPerThread * threads + items - 1) / items;
  const int runs = AttentionRuns(args);
  return wanted < runs ? wanted : runs > 1 ? runs : 1;
}
// Query vectors of an item, at most.
inline int AttentionItemQueries(const AttentionArgs& args) {
  const int rows = AttentionRowsPerItem(args);
  return (args.rows < rows ? args.rows : rows) * (args.q_heads / args.geometry.kv_heads);
}
// Floats of one query in `parts`: for each run its output, maximum and sum; then the attention that
// chunks get.
inline ptrdiff_t AttentionPartStride(const AttentionArgs& args) {
  const ptrdiff_t density = args.density == nullptr ? 0 : (args.density_stride + 15) / 16 * 16;
  return ptrdiff_t{AttentionRuns(args)} * (args.geometry.head_dim + 16) + density;
}
inline size_t AttentionPartFloats(const AttentionArgs& args) {
  return static_cast<size_t>(AttentionMergeItems(args)) *
         static_cast<size_t>(AttentionItemQueries(args)) *
         static_cast<size_t>(AttentionPartStride(args));
}

}  // namespace withy::engine
