// The one layout in which weights are stored, mapped and multiplied: [input panel][tile of 16
// output rows][inputs]. Neighbours: weights/ writes packed files with it, matmul.h multiplies it.
// Does no I/O and owns no memory.
//
// Bytes of one (panel, tile), every part padded to 64 bytes:
//   kF32, kF16, kBf16:  [input][16 rows]
//   kQ8:                f16 scales [block of 32][16 rows],
//                       then u8 quants (q + 128) [block][input / 4][16 rows][4]
//   kQ4:                f16 scales [block][16 rows], then nibbles [block][4][16 rows][4 bytes];
//                       byte (g, row, i) holds input 4g+i in its low half, 16+4g+i in its high half
//   kFp4, kNl4:         as kQ4
//   kQ4M:               scales, then f16 minima [block][16 rows], then nibbles as kQ4
// Rows and inputs beyond n_out and n_in are zero weights. A level is a prefix: of the tiles in a
// matrix of one panel (cut by rows), of the panels in a matrix cut along its inputs (O, down).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cpu/types.h"

namespace withy::engine {

// A view of packed weights W[n_out, n_in]. `data` is 64-byte aligned, PackedBytes() long, and
// outlives the view. It is null where only the layout matters.
struct PackedMatrix {
  WeightType type = WeightType::kF32;
  int n_out = 0;
  int n_in = 0;
  int panel_inputs = 0;  // inputs per panel, a multiple of 32; >= n_in: one panel
  const std::byte* data = nullptr;

  int tiles() const { return (n_out + kTileRows - 1) / kTileRows; }
  int padded_inputs() const { return (n_in + kQuantBlock - 1) / kQuantBlock * kQuantBlock; }
  int panels() const {
    return panel_inputs >= n_in ? 1 : (padded_inputs() + panel_inputs - 1) / panel_inputs;
  }
  int panel_begin(int panel) const { return panels() == 1 ? 0 : panel * panel_inputs; }
  int panel_end(int panel) const {
    return panel + 1 == panels() ? padded_inputs() : (panel + 1) * panel_inputs;
  }
};

// Bytes of one tile over `inputs` (a multiple of 32) inputs; a multiple of 64.
size_t TileBytes(WeightType type, int inputs);
// Byte offset of (panel, tile) from PackedMatrix::data.
size_t TileOffset(const PackedMatrix& m, int panel, int tile);
// Bytes of the whole matrix; a multiple of 64.
size_t PackedBytes(const PackedMatrix& m);
// Bytes of the prefix that holds outputs [0, n_out) x inputs [0, n_in): whole tiles if the matrix
// has one panel, else whole panels.
size_t PrefixBytes(const PackedMatrix& m, int n_out, int n_in);

// One row of weights before packing. The type decides which members are read:
//   kF32: f32 [n_in];  kF16, kBf16: half [n_in];  kQ8: q8 [n_in], scales [n_in / 32];
//   kQ4, kFp4, kNl4: q4 [n_in] values 0..15 (one a byte), scales;
//   kQ4M: q4, scales, mins (both f16).
struct WeightRow {
  const float* f32 = nullptr;
  const uint16_t* half = nullptr;
  const int8_t* q8 = nullptr;
  const uint8_t* q4 = nullptr;
  const uint16_t* scales = nullptr;
  const uint16_t* mins = nullptr;
};

// Writes row `out_row` of a matrix shaped like `m` (m.data is not used) to `dst`, which is
// PackedBytes(m) long and was filled by ZeroPacked(). Different threads may write different rows.
void PackRow(const PackedMatrix& m, int out_row, const WeightRow& row, std::byte* dst);

// Fills `dst` with zero weights (of kQ8 that is quant 128, not byte 0).
void ZeroPacked(const PackedMatrix& m, std::byte* dst);

// Writes row `out_row`, dequantised, to out[n_in]. For embedding look-up and tests.
void UnpackRow(const PackedMatrix& m, int out_row, float* out);

// Quantises x[n] (n a multiple of 32) as Q8_0: q[n], scales f16 [n / 32].
void QuantizeQ8(const float* x, int n, int8_t* q, uint16_t* scales);

}  // namespace withy::engine
