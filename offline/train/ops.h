// Fused operations with gradients, for f32 tensors on a CPU; on other devices the same mathematics
// from LibTorch's own operations. Neighbours: kernels.h has the loops, model.cc is the only caller.
#pragma once

#include <torch/torch.h>

namespace withy::train {

// What matrices are rounded to before they are multiplied; sums are f32 in both.
enum class Products { kF32, kBf16 };
// bf16 where the device multiplies it faster (AVX512_BF16, a GPU).
Products FastestProducts(torch::Device device);

// x [rows, inputs], weight [outputs, inputs] → [rows, outputs], f32. With kBf16 all of the three
// products, forward and backward, take and give bf16.
torch::Tensor Linear(const torch::Tensor& x, const torch::Tensor& weight, Products products);

// x [rows, width], weight [width] → [rows, width].
torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps);

// gate_up [rows, 2 * width], gate first → silu(gate) * up, [rows, width].
torch::Tensor SwiGlu(const torch::Tensor& gate_up);

// x [batch, length, heads, head_dim]; cos, sin [length, head_dim / 2]. Adjacent pairs turn
// together, as GGUF's "llama" has them.
torch::Tensor Rope(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin);

// Causal attention. q [batch, length, heads, head_dim], k and v [batch, length, kv_heads,
// head_dim]; heads a multiple of kv_heads, consecutive query heads share one. → [batch, length,
// heads, head_dim].
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v);

}  // namespace withy::train
