// What is done around the F16 products of passes with many rows (dense.h): matrices of weights and
// inputs in F16, row by row, and what a product does with its sums. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

constexpr int kDenseStrips = 16;  // that a warp finishes of a row
constexpr int kDenseSplits = 2;   // thread blocks that share a tile of weights
constexpr int kDenseSharedFloats = kThreads / 32 * 16;

// A power of two and its inverse, both without rounding.
struct Scale {
  float scale;
  float inverse;
};
// What brings numbers up to `max` below F16's largest and as high as possible: to 2^14 .. 2^15.
WITHY_DEVICE Scale HalfScale(float max) {
  const int exponent = FloatBits(max) >> 23 & 255;
  const int biased = 268 - exponent < 253 ? 268 - exponent : 253;
  return {BitsFloat(biased << 23), BitsFloat((254 - biased) << 23)};
}

// The product that has a strip.
WITHY_DEVICE const Product& ProductOf(const DenseArgs& args, int strip) {
  int n = 0;
  while (n + 1 < args.count && strip >= args.products[n + 1].first_strip) ++n;
  return args.products[n];
}

// What a thread block converts: a tile of 16 outputs, which becomes 16 columns.
struct DenseTile {
  int tile;
  int64_t column;  // the first one's
  int blocks;      // of inputs
};

// Larger of what two rows of a tile have, in the lanes that have these rows: lane 4g + t gets the
// rows g and g + 8 from values of the row g = lane % 8.
WITHY_DEVICE void ShareTileMax(float low, float high, float (&of_rows)[2]) {
  auto* shared = reinterpret_cast<float*>(SharedMemory());
  const int lane = ThreadX() % 32;
#pragma unroll
  for (int d = 8; d < 32; d *= 2) {
    low = Max(ShuffleXor(low, d), low);
    high = Max(ShuffleXor(high, d), high);
  }
  if (lane < 8) {
    StoreShared(shared + ThreadX() / 32 * 16 + lane, low);
    StoreShared(shared + ThreadX() / 32 * 16 + lane + 8, high);
  }
  SyncBlock();
  of_rows[0] = of_rows[1] = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    of_rows[0] = Max(LoadShared(shared + warp * 16 + lane / 4), of_rows[0]);
    of_rows[1] = Max(LoadShared(shared + warp * 16 + lane / 4 + 8), of_rows[1]);
  }
}

// Largest magnitudes that the rows of a tile may have. Comparisons leave numbers that are none out.
template <WeightType kType>
WITHY_DEVICE void FindTileMax(const Matrix& w, const DenseTile& at, float (&of_rows)[2]) {
  float low = 0.0f;
  float high = 0.0f;
  if constexpr (IsQuantized(kType)) {
    const float most = kType == WeightType::kQ8 ? 128.0f : kType == WeightType::kQ4 ? 8.0f : 15.0f;
    const auto* scales =
        reinterpret_cast<const Words4*>(w.scales) + int64_t{at.tile} * w.groups * 8;
    const auto* mins = reinterpret_cast<const Words4*>(w.mins) + int64_t{at.tile} * w.groups * 8;
#pragma unroll 1
    for (int i = ThreadX(); i / 8 * kGroupBlocks < at.blocks; i += kThreads) {
      const Words4 scale = LoadConst(scales + i);
      Words4 min = {};
      if constexpr (kType == WeightType::kQ4M) min = LoadConst(mins + i);
#pragma unroll
      for (int b = 0; b < kGroupBlocks; ++b) {
        if (i / 8 * kGroupBlocks + b >= at.blocks) break;
        low = Max(Fma(Abs(LowHalf(scale.w[b])), most, Abs(LowHalf(min.w[b]))), low);
        high = Max(Fma(Abs(HighHalf(scale.w[b])), most, Abs(HighHalf(min.w[b]))), high);
      }
    }
    ShareTileMax(low, high, of_rows);
  } else {
    const int lane = ThreadX() % 32;
#pragma unroll 2
    for (int block = ThreadX() / 32; block < at.blocks; block += kThreads / 32) {
      const int64_t part = (int64_t{at.tile} * w.blocks + block) * 2;
      RawEight<kType> raw[2];
      raw[0].Load(w, part);
      raw[1].Load(w, part + 1);
      float f[2][8];
      raw[0].Unpack(f[0]);
      raw[1].Unpack(f[1]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        low = Max(Abs(f[0][i]), low);
        high = Max(Abs(f[1][i]), high);
      }
    }
    // To lanes as the quantised ones have it: row g = lane % 8.
    low = Max(ShuffleXor(low, 1), low);
    low = Max(ShuffleXor(low, 2), low);
    high = Max(ShuffleXor(high, 1), high);
    high = Max(ShuffleXor(high, 2), high);
    ShareTileMax(Shuffle(low, lane % 8 * 4), Shuffle(high, lane % 8 * 4), of_rows);
  }
}

// Two words of four bytes each, which lane t has of the quads t and t + 4 of a block: leaves it two
// quads that follow each other, so that it stores them at once. Returns the first one's index.
WITHY_DEVICE int PairQuads(uint32_t* first, uint32_t* second) {
  const int t = ThreadX() % 4;
  const bool odd = t % 2 != 0;
  const uint32_t got = ShuffleXor(odd ? *first : *second, 1);
  if (odd) {
    *first = got;
  } else {
    *second = got;
  }
  return odd ? t + 3 : t;
}

// Byte i of a word. Bytes become the low bits of 2^23: conversion instructions are slower.
template <bool kSigned>
WITHY_DEVICE float ByteFloat(uint32_t word, int i) {
  const uint32_t byte = (kSigned ? word ^ 0x80808080u : word) >> (8 * i) & 255u;
  return BitsFloat(static_cast<int32_t>(0x4b000000u | byte)) - (kSigned ? 8388736.0f : 8388608.0f);
}

// Eight bytes q as the halves q * scale + add.
template <bool kSigned>
WITHY_DEVICE Words4 BytesToHalves(uint32_t first, uint32_t second, float scale, float add) {
  Words4 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = i < 2 ? first : second;
    v.w[i] = HalfPair(Fma(ByteFloat<kSigned>(word, i % 2 * 2), scale, add),
                      Fma(ByteFloat<kSigned>(word, i % 2 * 2 + 1), scale, add));
  }
  return v;
}

WITHY_DEVICE Words4 FloatsToHalves(const float (&f)[8], float scale) {
  Words4 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.w[i] = HalfPair(f[2 * i] * scale, f[2 * i + 1] * scale);
  return v;
}

// Warps of all thread blocks that convert a tile.
constexpr int kTileWarps = kDenseSplits * kThreads / 32;
WITHY_DEVICE int TileWarp() { return BlockY() * (kThreads / 32) + ThreadX() / 32; }

template <WeightType kType>
WITHY_DEVICE void QuantisedTile(const Matrix& w, const DenseTile& at, const Scale (&scale)[2],
                                uint16_t* to) {
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int64_t inputs = int64_t{at.blocks} * 32;
  for (int group = TileWarp(); group * kGroupBlocks < at.blocks; group += kTileWarps) {
    RawGroup<kType, Words4> raw;
    raw.Load(w, at.tile, group);
    uint32_t a[kGroupBlocks][4];
    raw.Unpack(a);
    const Words4 scales = raw.scales;
    const Words4 mins = raw.mins;
#pragma unroll
    for (int b = 0; b < kGroupBlocks; ++b) {
      const int block = group * kGroupBlocks + b;
      if (block >= at.blocks) break;
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const float f = (high ? HighHalf(scales.w[b]) : LowHalf(scales.w[b])) * scale[high].scale;
        float add = 0.0f;
        if constexpr (kType == WeightType::kQ4) add = -8.0f * f;
        if constexpr (kType == WeightType::kQ4M) {
          add = (high ? HighHalf(mins.w[b]) : LowHalf(mins.w[b])) * scale[high].scale;
        }
        const int quad = PairQuads(&a[b][high], &a[b][2 + high]);
        const Words4 v =
            BytesToHalves<kType == WeightType::kQ8>(a[b][high], a[b][2 + high], f, add);
        Store(reinterpret_cast<Words4*>(to + (at.column + g + 8 * high) * inputs + block * 32 +
                                        quad * 4),
              v);
      }
    }
  }
}

template <WeightType kType>
WITHY_DEVICE void FloatTile(const Matrix& w, const DenseTile& at, const Scale (&scale)[2],
                            uint16_t* to) {
  const int lane = ThreadX() % 32;
  const int64_t inputs = int64_t{at.blocks} * 32;
  // Loads of 128 bits in flight, eight at most: more take registers that other warps need.
  [[maybe_unused]] constexpr int kAtOnce = kType == WeightType::kF16    ? 4
                                           : kType == WeightType::kBf16 ? 2
                                                                        : 1;
#pragma unroll kAtOnce
  for (int block = TileWarp(); block < at.blocks; block += kTileWarps) {
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int64_t part = (int64_t{at.tile} * w.blocks + block) * 2 + high;
      Words4 v;
      if constexpr (kType == WeightType::kF16) {
        v = LoadStream(reinterpret_cast<const Words4*>(w.quants) + part * 32 + lane);
      } else {
        RawEight<kType> raw;
        raw.Load(w, part);
        float f[8];
        raw.Unpack(f);
        v = FloatsToHalves(f, scale[high].scale);
      }
      Store(reinterpret_cast<Words4*>(to + (at.column + lane / 4 + 8 * high) * inputs + block * 32 +
                                      lane % 4 * 8),
            v);
    }
  }
}

template <WeightType kType>
WITHY_DEVICE void ConvertTile(const Matrix& w, const DenseTile& at, const DenseArgs& args) {
  Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
  if constexpr (kType != WeightType::kF16) {
    float max[2];
    FindTileMax<kType>(w, at, max);
    scale[0] = HalfScale(max[0]);
    scale[1] = HalfScale(max[1]);
  }
  if (TileWarp() == 0 && ThreadX() % 4 == 0) {
    const int64_t column = at.column + ThreadX() / 4;
    Store(args.weight_factors + column, scale[0].inverse);
    Store(args.weight_factors + column + 8, scale[1].inverse);
  }
  if constexpr (IsQuantized(kType)) {
    QuantisedTile<kType>(w, at, scale, args.weights);
  } else {
    FloatTile<kType>(w, at, scale, args.weights);
  }
}

// The columns of a tile that the matrix does not have.
WITHY_DEVICE void ZeroTile(const DenseTile& at, const DenseArgs& args) {
  const int words = at.blocks * 4;  // of 16 bytes, a column
  auto* to = reinterpret_cast<Words4*>(args.weights) + at.column * words;
  for (int i = BlockY() * kThreads + ThreadX(); i < 16 * words; i += kDenseSplits * kThreads) {
    Store(to + i, Words4{});
  }
  if (BlockY() == 0 && ThreadX() < 16) Store(args.weight_factors + at.column + ThreadX(), 0.0f);
}

// Grid [tiles of all strips, kDenseSplits].
WITHY_GLOBAL void WITHY_THREADS(kThreads) DenseWeightsKernel(DenseArgs args) {
  const int tiles = kStripTiles * (args.fused ? 2 : 1);
  const int strip = args.first_strip + BlockX() / tiles;
  const Product& p = ProductOf(args, strip);
  const int part = BlockX() % tiles;                 // gate's tiles, then up's
  const Matrix w = part < kStripTiles ? p.w : p.up;  // a copy: stores could change what is behind p
  const DenseTile at = {(strip - p.first_strip) * kStripTiles + part % kStripTiles,
                        int64_t{BlockX()} * 16, args.blocks};
  if (at.tile >= w.tiles) return ZeroTile(at, args);
  switch (w.type) {
    case WeightType::kF32:
      return ConvertTile<WeightType::kF32>(w, at, args);
    case WeightType::kF16:
      return ConvertTile<WeightType::kF16>(w, at, args);
    case WeightType::kBf16:
      return ConvertTile<WeightType::kBf16>(w, at, args);
    case WeightType::kQ8:
      return ConvertTile<WeightType::kQ8>(w, at, args);
    case WeightType::kQ4:
      return ConvertTile<WeightType::kQ4>(w, at, args);
    case WeightType::kQ4M:
      return ConvertTile<WeightType::kQ4M>(w, at, args);
    case WeightType::kFp4:
    case WeightType::kNl4:
      break;  // DeviceType
  }
}

// Maximum over the threads of a block.
WITHY_DEVICE float BlockMax(float v) {
  auto* shared = reinterpret_cast<float*>(SharedMemory());
  v = WarpMax(v);
  if (ThreadX() % 32 == 0) StoreShared(shared + ThreadX() / 32, v);
  SyncBlock();
  float max = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) max = Max(LoadShared(shared + warp), max);
  return max;
}

// A row of floats, four a thread, so that a warp's loads and stores follow each other in memory;
// inputs from block `own` on are zero.
WITHY_DEVICE Scale FloatRow(const float* from, int own, int blocks, uint16_t* to) {
  const auto* fours = reinterpret_cast<const Words4*>(from);
  const auto value = [](const Words4& v, int i) { return BitsFloat(static_cast<int32_t>(v.w[i])); };
  float max = 0.0f;
  for (int i = ThreadX(); i < own * 8; i += kThreads) {
    const Words4 v = LoadConst(fours + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) max = Max(Abs(value(v, j)), max);
  }
  const Scale scale = HalfScale(BlockMax(max));
  for (int i = ThreadX(); i < blocks * 8; i += kThreads) {
    Words2 halves = {};
    if (i < own * 8) {
      const Words4 v = LoadConst(fours + i);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        halves.w[j] = HalfPair(value(v, 2 * j) * scale.scale, value(v, 2 * j + 1) * scale.scale);
      }
    }
    Store(reinterpret_cast<Words2*>(to) + i, halves);
  }
  return scale;
}

// The same of a quantised row.
WITHY_DEVICE Scale QuantRow(const Inputs& x, int row, int own, int blocks, uint16_t* to) {
  const float* scales = x.scales + int64_t{row} * x.groups * kGroupBlocks;
  const auto* quants =
      reinterpret_cast<const Words4*>(x.quants + int64_t{row} * x.groups * kGroupInputs);
  float max = 0.0f;
  for (int block = ThreadX(); block < own; block += kThreads) {
    max = Max(LoadConst(scales + block) * 127.0f, max);
  }
  const Scale scale = HalfScale(BlockMax(max));
  // A thread takes 16 bytes: quads t and t + 4 of two blocks. Whole warps, since lanes exchange.
  const int pieces = (blocks + kGroupBlocks - 1) / kGroupBlocks * 8;
  for (int first = ThreadX() / 32 * 32; first < pieces; first += kThreads) {
    const int piece = first + ThreadX() % 32;
    const int block = piece / 8 * kGroupBlocks + piece % 8 / 4 * 2;
    Words4 v = {};
    if (block < own) v = LoadConst(quants + piece);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int quad = PairQuads(&v.w[2 * i], &v.w[2 * i + 1]);
      if (block + i >= blocks) continue;
      const float f = block + i < own ? LoadConst(scales + block + i) * scale.scale : 0.0f;
      const Words4 halves = BytesToHalves<true>(v.w[2 * i], v.w[2 * i + 1], f, 0.0f);
      Store(reinterpret_cast<Words4*>(to + (block + i) * 32 + quad * 4), halves);
    }
  }
  return scale;
}

// Grid [rows].
WITHY_GLOBAL void WITHY_THREADS(kThreads) DenseInputsKernel(DenseArgs args) {
  const Product& p = args.products[0];
  const int row = BlockX();
  const int inputs = p.in_extent != nullptr ? LoadConst(p.in_extent + row) : p.w.n_in;
  const int own = (inputs + 31) / 32 < args.blocks ? (inputs + 31) / 32 : args.blocks;
  const int from = p.x_row + row;
  uint16_t* to = args.inputs + int64_t{row} * args.blocks * 32;
  const Scale scale =
      args.from_floats
          ? FloatRow(p.x.floats + int64_t{from} * p.x.groups * kGroupInputs, own, args.blocks, to)
          : QuantRow(Inputs(p.x), from, own, args.blocks, to);
  if (ThreadX() == 0) Store(args.input_factors + row, scale.inverse);
}

// A warp finishes some strips of a row as a product kernel does; grid [rows by 8, strips by
// kDenseStrips].
template <bool kFused>
WITHY_GLOBAL void WITHY_THREADS(kThreads) DenseFinishKernel(DenseArgs args) {
  const int row = BlockX() * (kThreads / 32) + ThreadX() / 32;
  if (row >= args.rows) return;
  constexpr int kColumns = (kFused ? 2 : 1) * kStripOutputs;
  const int lane = ThreadX() % 32;
  const Product& shared = args.products[0];
  float factor = LoadConst(args.input_factors + row);
  float norm = 1.0f;
  if (shared.normed) {
    norm = NormFactor(SumOfSquares(shared.x, shared.x_row + row, shared.w.n_in), shared.w.n_in,
                      shared.epsilon);
  }
  const int end = (BlockY() + 1) * kDenseStrips;
  for (int i = BlockY() * kDenseStrips; i < end && i < args.strips; ++i) {
    const int column = i * kColumns + lane;
    const float* sums = args.sums + int64_t{row} * args.strips * kColumns + column;
    const Product& p = ProductOf(args, args.first_strip + i);
    const int strip = args.first_strip + i - p.first_strip;
    // Two factors one after the other: their product may be out of range.
    const float v = LoadConst(sums) * factor * LoadConst(args.weight_factors + column) * norm;
    if constexpr (kFused) {
      const float up = LoadConst(sums + kStripOutputs) * factor *
                       LoadConst(args.weight_factors + column + kStripOutputs) * norm;
      FinishNeurons(p, strip, row, v, up);
    } else {
      FinishRow(p, strip, row, v, ReadOld(p, strip, row));
    }
  }
}

}  // namespace withy::engine::WITHY_GPU
