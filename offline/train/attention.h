// Causal attention over one sequence for training on CPUs: computes no score that the mask hides,
// and keeps a block of rows in cache. Neighbour: ops.cc gives it a gradient. f32. A call handles
// the query heads that share one KV head and is safe to run beside calls for others.
// Source: FlashAttention-2 (Dao, 2023), algorithms 1 and 2: rows in blocks, the logarithm of each
// row's sum kept instead of its probabilities.
#pragma once

#include <cstdint>

namespace withy::train::kernels {

// Heads of `head_dim` contiguous values; those of a position follow each other.
struct AttentionShape {
  int64_t length = 0;
  int64_t heads = 0;     // a multiple of kv_heads
  int64_t kv_heads = 0;  // consecutive query heads share one
  int64_t head_dim = 0;  // FitsAttention
  // Values from one position to the next.
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

bool FitsAttention(int64_t head_dim);

// out [length, heads, head_dim]; log_sums [heads, length].
void CausalAttention(const AttentionShape& shape, const float* q, const float* k, const float* v,
                     int64_t kv_head, float* out, float* log_sums);

// dout as out; dq [length, heads, head_dim], dk and dv [length, kv_heads, head_dim].
void CausalAttentionBackward(const AttentionShape& shape, const float* q, const float* k,
                             const float* v, int64_t kv_head, const float* out,
                             const float* log_sums, const float* dout, float* dq, float* dk,
                             float* dv);

}  // namespace withy::train::kernels
