// Elementwise parts of the transformer as plain loops over rows, fast on CPUs. Neighbour: ops.cc
// adds gradients. All arrays are contiguous f32, row-major. Each call handles rows [begin, end);
// calls on different rows may run in parallel.
#pragma once

#include <cstdint>

namespace withy::train::kernels {

// y = x * rstd * w, rstd = 1/sqrt(mean(x²)+eps), per row of `width`; rstd is stored for the
// backward pass.
void RmsNorm(const float* x, const float* w, float eps, float* y, float* rstd, int64_t width,
             int64_t begin, int64_t end);
// Computes dx; adds the rows' share of dw to `dw` [width].
void RmsNormBackward(const float* dy, const float* x, const float* w, const float* rstd, float* dx,
                     float* dw, int64_t width, int64_t begin, int64_t end);

// y[i] = silu(x[i]) * x[width + i] for rows of 2 * width.
void SwiGlu(const float* x, float* y, int64_t width, int64_t begin, int64_t end);
void SwiGluBackward(const float* dy, const float* x, float* dx, int64_t width, int64_t begin,
                    int64_t end);

// Rotates adjacent pairs of each head by the row's position: (a, b) → (a cos − b sin, a sin + b
// cos). cos and sin are [positions, head_dim / 2]; row r of x is [heads, head_dim] at position r %
// positions. `sign` −1 rotates back.
void Rope(const float* x, const float* cos, const float* sin, float sign, float* y,
          int64_t positions, int64_t heads, int64_t head_dim, int64_t begin, int64_t end);

}  // namespace withy::train::kernels
