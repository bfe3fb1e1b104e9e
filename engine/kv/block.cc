#include "engine/kv/block.h"

#include <cstring>

namespace withy::engine {
namespace {

size_t KByte(const KvGeometry& g, int head, int d, int slot) {
  return g.KOffset(head) + static_cast<size_t>((d / 4) * kChunkTokens * 4 + slot * 4 + d % 4);
}

size_t VByte(const KvGeometry& g, int head, int d, int slot) {
  return g.VOffset(head) + static_cast<size_t>((slot / 4) * g.head_dim * 4 + d * 4 + slot % 4);
}

float ReadScale(const std::byte* scales, int slot) {
  float scale;
  std::memcpy(&scale, scales + sizeof(float) * static_cast<size_t>(slot), sizeof scale);
  return scale;
}

}  // namespace

void CopyToken(const KvGeometry& g, const std::byte* src, int src_slot, std::byte* dst,
               int dst_slot) {
  for (int head = 0; head < g.kv_heads; ++head) {
    const size_t s = sizeof(float) * static_cast<size_t>(src_slot);
    const size_t t = sizeof(float) * static_cast<size_t>(dst_slot);
    std::memcpy(dst + g.KScaleOffset(head) + t, src + g.KScaleOffset(head) + s, sizeof(float));
    std::memcpy(dst + g.VScaleOffset(head) + t, src + g.VScaleOffset(head) + s, sizeof(float));
    for (int d = 0; d < g.head_dim; d += 4) {
      std::memcpy(dst + KByte(g, head, d, dst_slot), src + KByte(g, head, d, src_slot), 4);
    }
    for (int d = 0; d < g.head_dim; ++d) {
      dst[VByte(g, head, d, dst_slot)] = src[VByte(g, head, d, src_slot)];
    }
  }
}

void ReadToken(const KvGeometry& g, const std::byte* block, int slot, float* k, float* v) {
  for (int head = 0; head < g.kv_heads; ++head) {
    const float k_scale = ReadScale(block + g.KScaleOffset(head), slot);
    const float v_scale = ReadScale(block + g.VScaleOffset(head), slot);
    for (int d = 0; d < g.head_dim; ++d) {
      const int kq = static_cast<int>(block[KByte(g, head, d, slot)]) - 128;
      const auto vq = static_cast<int8_t>(block[VByte(g, head, d, slot)]);
      k[head * g.head_dim + d] = k_scale * static_cast<float>(kq);
      v[head * g.head_dim + d] = v_scale * static_cast<float>(vq);
    }
  }
}

}  // namespace withy::engine
