#include "engine/kv/block.h"

#include <cstring>

#include "engine/cpu/types.h"
#include "engine/kv/rotation.h"

namespace withy::engine {
namespace {

// Places within K and V at 8 bits.
size_t KByte(int d, int slot) {
  return static_cast<size_t>((d / 4) * kChunkTokens * 4 + slot * 4 + d % 4);
}
size_t VByte(int head_dim, int d, int slot) {
  return static_cast<size_t>((slot / 4) * head_dim * 4 + d * 4 + slot % 4);
}

template <typename T>
T At(const std::byte* array, int i) {
  T value;
  std::memcpy(&value, array + sizeof(T) * static_cast<size_t>(i), sizeof value);
  return value;
}

int Field(const std::byte* byte, int bits, int n) {
  return (static_cast<int>(*byte) >> (bits * n)) & ((1 << bits) - 1);
}

// The field of dimension d of a token, at 4 or 2 bits.
int KField(const std::byte* k, int bits, int d, int slot) {
  const int rows = 8 / bits;  // rows of kQ8's K in one of 64 bytes
  const int row = d / 4;
  return Field(k + row / rows * 64 + slot * 4 + d % 4, bits, row % rows);
}
int VField(const std::byte* v, int bits, int d, int slot) {
  const int quads = 8 / bits;  // token quads in 64 bytes
  const int line = d / 16 * (4 / quads) + slot / 4 / quads;
  return Field(v + line * 64 + d % 16 * 4 + slot % 4, bits, slot / 4 % quads);
}

void ReadRotated(const KvGeometry& g, KvFormat format, const std::byte* block, int head, int slot,
                 float* k, float* v) {
  const KvOffsets at = g.Offsets(format, head);
  if (format == KvFormat::kF16) {
    for (int d = 0; d < g.head_dim; ++d) {
      k[d] = F16ToF32(At<uint16_t>(block + at.k, d * kChunkTokens + slot));
      v[d] = F16ToF32(At<uint16_t>(block + at.v, slot * g.head_dim + d));
    }
    return;
  }
  if (format == KvFormat::kQ8) {
    const auto k_scale = At<float>(block + at.k_scale, slot);
    const auto v_scale = At<float>(block + at.v_scale, slot);
    for (int d = 0; d < g.head_dim; ++d) {
      k[d] = k_scale * static_cast<float>(static_cast<int>(block[at.k + KByte(d, slot)]) - 128);
      v[d] = v_scale * static_cast<int8_t>(block[at.v + VByte(g.head_dim, d, slot)]);
    }
    return;
  }
  const auto units = At<KvUnits>(block + at.units, 0);
  const float k_step = units.k_scale * At<uint8_t>(block + at.k_scale, slot);
  const float v_step = units.v_scale * At<uint8_t>(block + at.v_scale, slot);
  const std::byte* zeros = block + at.zero + slot;
  const float k_zero = static_cast<float>(KvZero(KBits(format), Field(zeros, 4, 0))) / kKvZeroUnits;
  const float v_zero = static_cast<float>(KvZero(VBits(format), Field(zeros, 4, 1))) / kKvZeroUnits;
  for (int d = 0; d < g.head_dim; ++d) {
    const int mean = Field(block + at.k_mean + d / 8 * 4 + d % 4, 4, d / 4 % 2) - kKvMeanZero;
    const int k_field = KField(block + at.k, KBits(format), d, slot);
    const int v_field = VField(block + at.v, VBits(format), d, slot);
    k[d] =
        units.k_mean * static_cast<float>(mean) + k_step * (static_cast<float>(k_field) - k_zero);
    v[d] = v_step * (static_cast<float>(v_field) - v_zero);
  }
}

}  // namespace

void CopyToken(const KvGeometry& g, const std::byte* src, int src_slot, std::byte* dst,
               int dst_slot) {
  for (int head = 0; head < g.kv_heads; ++head) {
    const KvOffsets at = g.Offsets(KvFormat::kQ8, head);
    const size_t s = sizeof(float) * static_cast<size_t>(src_slot);
    const size_t t = sizeof(float) * static_cast<size_t>(dst_slot);
    std::memcpy(dst + at.k_scale + t, src + at.k_scale + s, sizeof(float));
    std::memcpy(dst + at.v_scale + t, src + at.v_scale + s, sizeof(float));
    for (int d = 0; d < g.head_dim; d += 4) {
      std::memcpy(dst + at.k + KByte(d, dst_slot), src + at.k + KByte(d, src_slot), 4);
    }
    for (int d = 0; d < g.head_dim; ++d) {
      dst[at.v + VByte(g.head_dim, d, dst_slot)] = src[at.v + VByte(g.head_dim, d, src_slot)];
    }
  }
}

void ReadToken(const KvGeometry& g, const std::byte* block, int slot, float* k, float* v,
               KvFormat format) {
  for (int head = 0; head < g.kv_heads; ++head, k += g.head_dim, v += g.head_dim) {
    ReadRotated(g, format, block, head, slot, k, v);
    RotateHead(g.head_dim, k);
    RotateHead(g.head_dim, v);
  }
}

}  // namespace withy::engine
