// Fused operations with gradients for f32 tensors on a CPU; on other devices the same mathematics
// with LibTorch's own operations. Neighbours: kernels.h has the loops, model.cc is the only caller.
#pragma once

#include <torch/torch.h>

namespace withy::train {

// Type to which matrices are rounded before multiplication; sums are f32 in both cases.
enum class Products { kF32, kBf16 };
// bf16 if the device multiplies it faster (AVX512_BF16, a GPU).
Products FastestProducts(torch::Device device);

// x [rows, inputs], weight [outputs, inputs] → [rows, outputs], f32. With kBf16 all three products
// (forward and backward) have bf16 inputs and outputs.
torch::Tensor Linear(const torch::Tensor& x, const torch::Tensor& weight, Products products);

// x [rows, width], weight [width] → [rows, width].
torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps);

// gate_up [rows, 2 * width], gate first → silu(gate) * up, [rows, width].
torch::Tensor SwiGlu(const torch::Tensor& gate_up);

// x [batch, length, heads, head_dim]; cos, sin [length, head_dim / 2]. Rotates adjacent pairs, as
// in GGUF's "llama".
torch::Tensor Rope(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin);

// Causal attention. q [batch, length, heads, head_dim], k and v [batch, length, kv_heads,
// head_dim]; `heads` is a multiple of kv_heads and consecutive query heads share one → [batch,
// length, heads, head_dim].
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v);

}  // namespace withy::train
