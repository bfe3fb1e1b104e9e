#include "engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace withy::engine {
namespace {

size_t Pad64(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t ScaleBytes(int blocks) { return Pad64(static_cast<size_t>(blocks) * kTileRows * 2); }

// Addresses of the scales, minima and quants of the tile that starts at `tile`.
struct TileParts {
  std::byte* scales;
  std::byte* mins;
  std::byte* quants;
};

TileParts PartsOf(WeightType type, std::byte* tile, int blocks) {
  if (!IsQuantized(type)) return {tile, tile, tile};
  std::byte* after = tile + ScaleBytes(blocks);
  return {tile, after, type == WeightType::kQ4M ? after + ScaleBytes(blocks) : after};
}

// Byte offset of the quant of (input in tile, row in tile) within the tile's quants.
size_t Q8Byte(int input, int row) {
  return static_cast<size_t>(input / 4 * 64 + row * 4 + input % 4);
}
size_t Q4Byte(int input, int row) {
  return static_cast<size_t>(input / 32 * 256) + Q8Byte(input % 16, row);
}

void Store16(std::byte* base, int index, uint16_t value) {
  std::memcpy(base + static_cast<size_t>(index) * 2, &value, 2);
}
uint16_t Load16(const std::byte* base, int index) {
  uint16_t value;
  std::memcpy(&value, base + static_cast<size_t>(index) * 2, 2);
  return value;
}

void PackFloats(WeightType type, const WeightRow& row, int begin, int n, int lane,
                std::byte* tile) {
  for (int i = 0; i < n; ++i) {
    const int at = i * kTileRows + lane;
    if (type == WeightType::kF32) {
      std::memcpy(tile + static_cast<size_t>(at) * 4, row.f32 + begin + i, 4);
    } else {
      Store16(tile, at, row.half[begin + i]);
    }
  }
}

void PackQuants(WeightType type, const WeightRow& row, int begin, int n, int lane,
                const TileParts& parts) {
  for (int i = 0; i < n; i += kQuantBlock) {
    const int at = i / kQuantBlock * kTileRows + lane;
    Store16(parts.scales, at, row.scales[(begin + i) / kQuantBlock]);
    if (type == WeightType::kQ4M) Store16(parts.mins, at, row.mins[(begin + i) / kQuantBlock]);
  }
  for (int i = 0; i < n; ++i) {
    if (type == WeightType::kQ8) {
      parts.quants[Q8Byte(i, lane)] = static_cast<std::byte>(row.q8[begin + i] + 128);
    } else {
      const bool high = i % 32 >= 16;
      std::byte& b = parts.quants[Q4Byte(i, lane)];
      const auto q = static_cast<std::byte>(row.q4[begin + i]);
      b = high ? (b & std::byte{0x0f}) | (q << 4) : (b & std::byte{0xf0}) | q;
    }
  }
}

}  // namespace

size_t TileBytes(WeightType type, int inputs) {
  const size_t n = static_cast<size_t>(inputs);
  const int blocks = inputs / kQuantBlock;
  switch (type) {
    case WeightType::kF32:
      return n * kTileRows * 4;
    case WeightType::kF16:
    case WeightType::kBf16:
      return n * kTileRows * 2;
    case WeightType::kQ8:
      return ScaleBytes(blocks) + n * kTileRows;
    case WeightType::kQ4:
    case WeightType::kFp4:
    case WeightType::kNl4:
      return ScaleBytes(blocks) + n * kTileRows / 2;
    case WeightType::kQ4M:
      return 2 * ScaleBytes(blocks) + n * kTileRows / 2;
  }
  return 0;
}

size_t TileOffset(const PackedMatrix& m, int panel, int tile) {
  const size_t tiles = static_cast<size_t>(m.tiles());
  const size_t before =
      panel == 0 ? 0 : static_cast<size_t>(panel) * tiles * TileBytes(m.type, m.panel_inputs);
  const int inputs = m.panel_end(panel) - m.panel_begin(panel);
  return before + static_cast<size_t>(tile) * TileBytes(m.type, inputs);
}

size_t PackedBytes(const PackedMatrix& m) { return TileOffset(m, m.panels() - 1, m.tiles()); }

size_t PrefixBytes(const PackedMatrix& m, int n_out, int n_in) {
  if (n_out <= 0 || n_in <= 0) return 0;
  if (m.panels() == 1) {
    return TileOffset(m, 0, std::min(m.tiles(), (n_out + kTileRows - 1) / kTileRows));
  }
  const int panels = std::min(m.panels(), (n_in + m.panel_inputs - 1) / m.panel_inputs);
  return TileOffset(m, panels - 1, m.tiles());
}

void ZeroPacked(const PackedMatrix& m, std::byte* dst) {
  std::memset(dst, 0, PackedBytes(m));
  if (m.type != WeightType::kQ8) return;
  for (int panel = 0; panel < m.panels(); ++panel) {
    const int inputs = m.panel_end(panel) - m.panel_begin(panel);
    for (int tile = 0; tile < m.tiles(); ++tile) {
      const TileParts parts =
          PartsOf(m.type, dst + TileOffset(m, panel, tile), inputs / kQuantBlock);
      std::memset(parts.quants, 128, static_cast<size_t>(inputs) * kTileRows);
    }
  }
}

void PackRow(const PackedMatrix& m, int out_row, const WeightRow& row, std::byte* dst) {
  const int tile = out_row / kTileRows;
  const int lane = out_row % kTileRows;
  for (int panel = 0; panel < m.panels(); ++panel) {
    const int begin = m.panel_begin(panel);
    const int n = std::min(m.panel_end(panel), m.n_in) - begin;
    std::byte* to = dst + TileOffset(m, panel, tile);
    if (IsQuantized(m.type)) {
      const int blocks = (m.panel_end(panel) - begin) / kQuantBlock;
      PackQuants(m.type, row, begin, n, lane, PartsOf(m.type, to, blocks));
    } else {
      PackFloats(m.type, row, begin, n, lane, to);
    }
  }
}

void UnpackRow(const PackedMatrix& m, int out_row, float* out) {
  const int lane = out_row % kTileRows;
  for (int panel = 0; panel < m.panels(); ++panel) {
    const int begin = m.panel_begin(panel);
    const int n = std::min(m.panel_end(panel), m.n_in) - begin;
    const int blocks = (m.panel_end(panel) - begin) / kQuantBlock;
    std::byte* tile = const_cast<std::byte*>(m.data) + TileOffset(m, panel, out_row / kTileRows);
    const TileParts parts = PartsOf(m.type, tile, blocks);
    for (int i = 0; i < n; ++i) {
      const int at = i * kTileRows + lane;
      const int block = i / kQuantBlock * kTileRows + lane;
      float value = 0;
      switch (m.type) {
        case WeightType::kF32:
          std::memcpy(&value, tile + static_cast<size_t>(at) * 4, 4);
          break;
        case WeightType::kF16:
          value = F16ToF32(Load16(tile, at));
          break;
        case WeightType::kBf16:
          value = Bf16ToF32(Load16(tile, at));
          break;
        case WeightType::kQ8:
          value = F16ToF32(Load16(parts.scales, block)) *
                  static_cast<float>(static_cast<int>(parts.quants[Q8Byte(i, lane)]) - 128);
          break;
        case WeightType::kQ4:
        case WeightType::kQ4M:
        case WeightType::kFp4:
        case WeightType::kNl4: {
          const int byte = static_cast<int>(parts.quants[Q4Byte(i, lane)]);
          const int q = i % 32 >= 16 ? byte >> 4 : byte & 15;
          const float scale = F16ToF32(Load16(parts.scales, block));
          if (HasTable(m.type)) {
            value = scale * static_cast<float>(TableOf(m.type)[q]);
          } else if (m.type == WeightType::kQ4) {
            value = scale * static_cast<float>(q - 8);
          } else {
            value = scale * static_cast<float>(q) + F16ToF32(Load16(parts.mins, block));
          }
          break;
        }
      }
      out[begin + i] = value;
    }
  }
}

void QuantizeQ8(const float* x, int n, int8_t* q, uint16_t* scales) {
  for (int b = 0; b < n / kQuantBlock; ++b) {
    float max = 0;
    for (int i = 0; i < kQuantBlock; ++i) max = std::max(max, std::fabs(x[b * kQuantBlock + i]));
    const float scale = max / 127.0f;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    scales[b] = F32ToF16(scale);
    for (int i = 0; i < kQuantBlock; ++i) {
      q[b * kQuantBlock + i] = static_cast<int8_t>(std::lrint(x[b * kQuantBlock + i] * inverse));
    }
  }
}

}  // namespace withy::engine
