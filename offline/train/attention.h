// Causal attention over one sequence for training on CPUs: computes no masked score and keeps a
// block of rows in cache. f32. Neighbour: ops.cc adds the gradient. A call handles the query heads
// of one KV head; calls for different KV heads may run in parallel. Source: FlashAttention-2 (Dao,
// 2023), algorithms 1 and 2: rows in blocks, the log of each row's sum stored instead of its
// probabilities.
#pragma once

#include <cstdint>

namespace withy::train::kernels {

// Heads are `head_dim` contiguous values; the heads of one position are adjacent.
struct AttentionShape {
  int64_t length = 0;
  int64_t heads = 0;     // a multiple of kv_heads
  int64_t kv_heads = 0;  // each is shared by consecutive query heads
  int64_t head_dim = 0;  // see FitsAttention
  // Distance between positions, in values.
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

bool FitsAttention(int64_t head_dim);

// out [length, heads, head_dim]; log_sums [heads, length].
void CausalAttention(const AttentionShape& shape, const float* q, const float* k, const float* v,
                     int64_t kv_head, float* out, float* log_sums);

// dout has the shape of out; dq [length, heads, head_dim], dk and dv [length, kv_heads, head_dim].
void CausalAttentionBackward(const AttentionShape& shape, const float* q, const float* k,
                             const float* v, int64_t kv_head, const float* out,
                             const float* log_sums, const float* dout, float* dq, float* dk,
                             float* dv);

}  // namespace withy::train::kernels
