// Fused operations with gradients, for f32 tensors on a CPU; on other devices the same mathematics
// from LibTorch's own operations. Neighbours: kernels.h has the loops, model.cc is the only caller.
#pragma once

#include <torch/torch.h>

namespace withy::train {

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
