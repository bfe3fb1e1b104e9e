#include "offline/train/kernels.h"

#include <cmath>

namespace withy::train::kernels {

void RmsNorm(const float* x, const float* w, float eps, float* y, float* rstd, int64_t width,
             int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* in = x + r * width;
    float* out = y + r * width;
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += in[i] * in[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
    rstd[r] = scale;
    for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale * w[i];
  }
}

void RmsNormBackward(const float* dy, const float* x, const float* w, const float* rstd, float* dx,
                     float* dw, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* g = dy + r * width;
    const float* in = x + r * width;
    float* out = dx + r * width;
    const float scale = rstd[r];
    float dot = 0;
    for (int64_t i = 0; i < width; ++i) dot += g[i] * w[i] * in[i];
    const float shrink = dot * scale * scale / static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) {
      out[i] = scale * (g[i] * w[i] - in[i] * shrink);
      dw[i] += g[i] * in[i] * scale;
    }
  }
}

void SwiGlu(const float* x, float* y, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* gate = x + r * 2 * width;
    const float* up = gate + width;
    float* out = y + r * width;
    for (int64_t i = 0; i < width; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
}

void SwiGluBackward(const float* dy, const float* x, float* dx, int64_t width, int64_t begin,
                    int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* g = dy + r * width;
    const float* gate = x + r * 2 * width;
    const float* up = gate + width;
    float* dgate = dx + r * 2 * width;
    float* dup = dgate + width;
    for (int64_t i = 0; i < width; ++i) {
      const float sigmoid = 1.0f / (1.0f + std::exp(-gate[i]));
      const float silu = gate[i] * sigmoid;
      dup[i] = g[i] * silu;
      dgate[i] = g[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
    }
  }
}

void Rope(const float* x, const float* cos, const float* sin, float sign, float* y,
          int64_t positions, int64_t heads, int64_t head_dim, int64_t begin, int64_t end) {
  const int64_t pairs = head_dim / 2;
  for (int64_t r = begin; r < end; ++r) {
    const float* c = cos + (r % positions) * pairs;
    const float* s = sin + (r % positions) * pairs;
    for (int64_t h = 0; h < heads; ++h) {
      const float* in = x + (r * heads + h) * head_dim;
      float* out = y + (r * heads + h) * head_dim;
      for (int64_t i = 0; i < pairs; ++i) {
        const float turn = s[i] * sign;
        out[2 * i] = in[2 * i] * c[i] - in[2 * i + 1] * turn;
        out[2 * i + 1] = in[2 * i] * turn + in[2 * i + 1] * c[i];
      }
    }
  }
}

}  // namespace withy::train::kernels
