#include "engine/kv/rotation.h"

#include <cmath>

namespace withy::engine {

void RotateHead(int head_dim, float* x) {
  const int block = RotationBlock(head_dim);
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  for (int stride = 1; stride < block; stride *= 2) {
    for (int i = 0; i < head_dim; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i];
      const float b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  for (int i = 0; i < head_dim; ++i) x[i] *= norm;
}

}  // namespace withy::engine
