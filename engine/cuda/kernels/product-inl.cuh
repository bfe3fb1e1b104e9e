// Matrix products y = W x. A thread block computes a strip of 32 outputs (of gate and up: 32 of
// each) for some rows; its eight warps take every eighth group of 128 inputs each. Included by
// kernels-inl.cuh.
//
// The sum of an output is the same for any rows, path and extents. Of a block of 32 inputs the
// products are an exact int32. Lane sums: for each part (warp) and each block index within a group,
// f = fma(weight scale * input scale, int, f) over the part's groups. Then ((f0 + f1) + (f2 + f3)),
// then the parts in order. dp4a keeps f_t in the lane with t = lane % 4; mma keeps all four in each
// lane. Inputs beyond a row's extent are zero and add zero.
namespace withy::engine::WITHY_GPU {

// Quantised weights of a tile and group as they lie in memory, of one lane. `Meta`: the lane's part
// of scales and minima, a word (dp4a: of its block) or four (mma: of all blocks).
template <WeightType kType, typename Meta>
struct RawGroup {
  static constexpr int kVectors = kType == WeightType::kQ8 ? kGroupBlocks : kGroupBlocks / 2;
  Words4 quants[kVectors] = {};
  Meta scales = {};
  Meta mins = {};

  WITHY_DEVICE void Load(const Matrix& w, int tile, int group) {
    constexpr int kBlocks = kGroupBlocks / kVectors;  // of a vector
    const int lane = ThreadX() % 32;
    const int vectors = (w.blocks + kBlocks - 1) / kBlocks;
    const auto* from = reinterpret_cast<const Words4*>(
        w.quants + (int64_t{tile} * vectors + group * kVectors) * 512);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      quants[i] = {};
      if (group * kVectors + i < vectors) quants[i] = LoadStream(from + i * 32 + lane);
    }
    constexpr int kLanes = 128 / sizeof(Meta);
    const int64_t at = (int64_t{tile} * w.groups + group) * kLanes + lane * kLanes / 32;
    scales = LoadConst(reinterpret_cast<const Meta*>(w.scales) + at);
    if constexpr (kType == WeightType::kQ4M) {
      mins = LoadConst(reinterpret_cast<const Meta*>(w.mins) + at);
    }
  }
  WITHY_DEVICE void Unpack(uint32_t (&a)[kGroupBlocks][4]) const {
    if constexpr (kType == WeightType::kQ8) {
#pragma unroll
      for (int b = 0; b < kGroupBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[b][i] = quants[b].w[i];
      }
    } else {
#pragma unroll
      for (int b = 0; b < kGroupBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = quants[b / 2].w[b % 2 * 2 + i];
          a[b][i] = word & 0x0f0f0f0fu;
          a[b][i + 2] = (word >> 4) & 0x0f0f0f0fu;
        }
      }
    }
  }
};

// What the lanes of a warp load ahead: a group of each tile of a strip.
template <WeightType kType, typename Meta>
struct RawStrip {
  RawGroup<kType, Meta> tile[kStripTiles];

  WITHY_DEVICE void Load(const Matrix& w, int strip, int group, int blocks) {
    if (group * kGroupBlocks >= blocks) return;
#pragma unroll
    for (int n = 0; n < kStripTiles; ++n) {
      if (strip * kStripTiles + n < w.tiles) tile[n].Load(w, strip * kStripTiles + n, group);
    }
  }
};

// The inputs of a row's group that a lane multiplies.
WITHY_DEVICE void LoadInputs(const Inputs& x, int row, int group, int t,
                             uint32_t (&b)[kGroupBlocks][2]) {
  const auto* from = reinterpret_cast<const Words4*>(
      x.quants + (int64_t{row} * x.groups + group) * kGroupInputs + t * 16);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Words4 v = LoadConst(from + half * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[half * 2 + i / 2][i % 2] = v.w[i];
  }
}

// In shared memory, [part][row][outputs]. The stride keeps the rows that mma's lanes write apart in
// different banks.
struct PartSums {
  float* at;
  int rows;
  int stride;
  WITHY_DEVICE float* Of(int part, int row, int output) const {
    return at + (part * rows + row) * stride + output;
  }
};

struct StripRows {
  int first = 0;  // of the inputs' rows
  int count = 0;
  int blocks = 0;  // of inputs that the first row has, which has most
};

WITHY_DEVICE float LowHalf(uint32_t pair) { return HalfFloat(static_cast<uint16_t>(pair)); }
WITHY_DEVICE float HighHalf(uint32_t pair) { return HalfFloat(static_cast<uint16_t>(pair >> 16)); }

// Sum over the four blocks of a group, of which lane t gets block t: of four sums of each lane.
WITHY_DEVICE int32_t ScatterSums(const int32_t (&p)[kGroupBlocks], int t) {
  const bool upper = (t & 2) != 0;
  int32_t first = upper ? p[2] : p[0];
  int32_t second = upper ? p[3] : p[1];
  first += ShuffleXor(upper ? p[0] : p[2], 2);
  second += ShuffleXor(upper ? p[1] : p[3], 2);
  const bool odd = (t & 1) != 0;
  return (odd ? second : first) + ShuffleXor(odd ? first : second, 1);
}

// Adds the sums of the four lanes of an output, of the rows g and g + 8 of each tile.
template <int R>
WITHY_DEVICE void StoreLaneSums(const float (&acc)[kStripTiles][R][2], const StripRows& rows,
                                int part, const PartSums& sums) {
  const int g = ThreadX() % 32 / 4;
  const bool first = ThreadX() % 4 == 0;
#pragma unroll
  for (int n = 0; n < kStripTiles; ++n) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float v = acc[n][r][i];
        v += ShuffleXor(v, 1);
        v += ShuffleXor(v, 2);
        if (first && r < rows.count) StoreShared(sums.Of(part, r, n * 16 + g + 8 * i), v);
      }
    }
  }
}

// Part `part` of the sums of R rows, by dp4a. `start` is called when the first weights are on their
// way, before anything else is read.
template <WeightType kType, int R, typename Start>
WITHY_DEVICE void DotPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                          int part, const PartSums& sums, const Start& start) {
  const int t = ThreadX() % 4;
  float acc[kStripTiles][R][2] = {};
  RawStrip<kType, uint32_t> raw;
  raw.Load(w, strip, part, rows.blocks);
  start();
  for (int group = part; group * kGroupBlocks < rows.blocks; group += kParts) {
    RawStrip<kType, uint32_t> next;
    next.Load(w, strip, group + kParts, rows.blocks);
    uint32_t x[R][kGroupBlocks][2];
    float x_scale[R];
    int32_t x_sum[R];
    const bool live = group * kGroupBlocks + t < rows.blocks;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = rows.first + (r < rows.count ? r : rows.count - 1);
      LoadInputs(in, row, group, t, x[r]);
      const int64_t at = (int64_t{row} * in.groups + group) * kGroupBlocks + t;
      x_scale[r] = LoadConst(in.scales + at);
      x_sum[r] = kType == WeightType::kQ8 ? 0 : LoadConst(in.sums + at);
    }
#pragma unroll
    for (int n = 0; n < kStripTiles; ++n) {
      if (strip * kStripTiles + n >= w.tiles) continue;
      uint32_t a[kGroupBlocks][4];
      raw.tile[n].Unpack(a);
      const uint32_t scales = raw.tile[n].scales;
      const uint32_t mins = raw.tile[n].mins;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        int32_t low[kGroupBlocks];
        int32_t high[kGroupBlocks];
#pragma unroll
        for (int b = 0; b < kGroupBlocks; ++b) {
          low[b] = Dp4a(a[b][0], x[r][b][0], Dp4a(a[b][2], x[r][b][1], 0));
          high[b] = Dp4a(a[b][1], x[r][b][0], Dp4a(a[b][3], x[r][b][1], 0));
        }
        int32_t sum_low = ScatterSums(low, t);
        int32_t sum_high = ScatterSums(high, t);
        if constexpr (kType == WeightType::kQ4) {
          sum_low -= 8 * x_sum[r];
          sum_high -= 8 * x_sum[r];
        }
        const float f_low = live ? LowHalf(scales) * x_scale[r] : 0.0f;
        const float f_high = live ? HighHalf(scales) * x_scale[r] : 0.0f;
        acc[n][r][0] = Fma(f_low, static_cast<float>(sum_low), acc[n][r][0]);
        acc[n][r][1] = Fma(f_high, static_cast<float>(sum_high), acc[n][r][1]);
        if constexpr (kType == WeightType::kQ4M) {
          const float inputs = live ? x_scale[r] * static_cast<float>(x_sum[r]) : 0.0f;
          acc[n][r][0] = Fma(live ? LowHalf(mins) : 0.0f, inputs, acc[n][r][0]);
          acc[n][r][1] = Fma(live ? HighHalf(mins) : 0.0f, inputs, acc[n][r][1]);
        }
      }
    }
    raw = next;
  }
  StoreLaneSums(acc, rows, part, sums);
}

// What mma needs of the inputs of 8 rows, of one group.
struct MmaInputs {
  uint32_t x[kGroupBlocks][2];  // fragments of B
  Words4 scales[2];             // by block, of the two rows whose sums the lane has
  Words4 sums[2];
};

template <WeightType kType>
WITHY_DEVICE MmaInputs LoadMmaInputs(const Inputs& in, const StripRows& rows, int first,
                                     int group) {
  const int lane = ThreadX() % 32;
  const int t = lane % 4;
  const auto row_of = [&](int r) {
    return rows.first + (first + r < rows.count ? first + r : rows.count - 1);
  };
  MmaInputs inputs;
  LoadInputs(in, row_of(lane / 4), group, t, inputs.x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t at = int64_t{row_of(2 * t + i)} * in.groups + group;
    inputs.scales[i] = LoadConst(reinterpret_cast<const Words4*>(in.scales) + at);
    if (kType == WeightType::kQ8) {
      inputs.sums[i] = {};
    } else {
      inputs.sums[i] = LoadConst(reinterpret_cast<const Words4*>(in.sums) + at);
    }
  }
  return inputs;
}

// The same of R rows, a multiple of 8, by mma.
template <WeightType kType, int R, typename Start>
WITHY_DEVICE void MmaPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                          int part, const PartSums& sums, const Start& start) {
  constexpr int kEights = R / 8;
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  float acc[kStripTiles][kEights][4][kGroupBlocks] = {};
  RawStrip<kType, Words4> raw;
  raw.Load(w, strip, part, rows.blocks);
  start();
  for (int group = part; group * kGroupBlocks < rows.blocks; group += kParts) {
    RawStrip<kType, Words4> next;
    next.Load(w, strip, group + kParts, rows.blocks);
    MmaInputs inputs[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      inputs[e] = LoadMmaInputs<kType>(in, rows, e * 8, group);
    }
#pragma unroll
    for (int n = 0; n < kStripTiles; ++n) {
      if (strip * kStripTiles + n >= w.tiles) continue;
      uint32_t a[kGroupBlocks][4];
      raw.tile[n].Unpack(a);
      const Words4 scales = raw.tile[n].scales;
      const Words4 mins = raw.tile[n].mins;
#pragma unroll
      for (int b = 0; b < kGroupBlocks; ++b) {
        const bool live = group * kGroupBlocks + b < rows.blocks;
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          int32_t c[4] = {};
          MmaS8(c, a[b], inputs[e].x[b]);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float x_scale = BitsFloat(static_cast<int32_t>(inputs[e].scales[i % 2].w[b]));
            const auto x_sum = static_cast<int32_t>(inputs[e].sums[i % 2].w[b]);
            const float scale = i < 2 ? LowHalf(scales.w[b]) : HighHalf(scales.w[b]);
            float* f = &acc[n][e][i][b];
            int32_t sum = c[i];
            if constexpr (kType == WeightType::kQ4) sum -= 8 * x_sum;
            *f = Fma(live ? scale * x_scale : 0.0f, static_cast<float>(sum), *f);
            if constexpr (kType == WeightType::kQ4M) {
              const float min = i < 2 ? LowHalf(mins.w[b]) : HighHalf(mins.w[b]);
              const float of_inputs = live ? x_scale * static_cast<float>(x_sum) : 0.0f;
              *f = Fma(live ? min : 0.0f, of_inputs, *f);
            }
          }
        }
      }
    }
    raw = next;
  }
#pragma unroll
  for (int n = 0; n < kStripTiles; ++n) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = e * 8 + 2 * t + i % 2;
        const float(&f)[kGroupBlocks] = acc[n][e][i];
        if (row < rows.count) {
          StoreShared(sums.Of(part, row, n * 16 + g + i / 2 * 8), (f[0] + f[1]) + (f[2] + f[3]));
        }
      }
    }
  }
}

// Eight float weights of a row, of one lane. `part`: of [tile][block][rows g, g + 8].
template <WeightType kType>
struct RawEight {
  static constexpr int kVectors = kType == WeightType::kF32 ? 2 : 1;
  Words4 v[kVectors] = {};

  WITHY_DEVICE void Load(const Matrix& w, int64_t part) {
    const auto* from =
        reinterpret_cast<const Words4*>(w.quants) + part * kVectors * 32 + ThreadX() % 32;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = LoadStream(from + i * 32);
  }
  WITHY_DEVICE void Unpack(float (&f)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kType == WeightType::kF32) {
        f[i] = BitsFloat(static_cast<int32_t>(v[i / 4].w[i % 4]));
      } else {
        const uint32_t pair = v[0].w[i / 2];
        if constexpr (kType == WeightType::kF16) {
          f[i] = i % 2 == 0 ? LowHalf(pair) : HighHalf(pair);
        } else {
          f[i] = BitsFloat(static_cast<int32_t>(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u));
        }
      }
    }
  }
};

// Float weights of a strip and kBlocks blocks of 32 inputs, of one lane: of the rows g and g + 8 of
// each tile.
template <WeightType kType>
struct RawFloats {
  static constexpr int kBlocks = 2 / RawEight<kType>::kVectors;
  RawEight<kType> eight[kStripTiles][kBlocks][2];

  WITHY_DEVICE void Load(const Matrix& w, int strip, int block, int blocks) {
#pragma unroll
    for (int n = 0; n < kStripTiles; ++n) {
      const int tile = strip * kStripTiles + n;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if (tile >= w.tiles || block + b >= blocks) continue;
        const int64_t part = (int64_t{tile} * w.blocks + block + b) * 2;
#pragma unroll
        for (int high = 0; high < 2; ++high) eight[n][b][high].Load(w, part + high);
      }
    }
  }
};

// Float weights: each lane sums its inputs 8t .. 8t + 7 of every block in order.
template <WeightType kType, int R, typename Start>
WITHY_DEVICE void FloatPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                            int part, const PartSums& sums, const Start& start) {
  using Raw = RawFloats<kType>;
  constexpr int kSteps = kGroupBlocks / Raw::kBlocks;  // of a group
  const int t = ThreadX() % 4;
  const auto block_of = [&](int step) {
    return (part + step / kSteps * kParts) * kGroupBlocks + step % kSteps * Raw::kBlocks;
  };
  float acc[kStripTiles][R][2] = {};
  Raw raw;
  raw.Load(w, strip, block_of(0), rows.blocks);
  start();
  for (int step = 0; block_of(step / kSteps * kSteps) < rows.blocks; ++step) {
    Raw next;
    next.Load(w, strip, block_of(step + 1), rows.blocks);
#pragma unroll
    for (int b = 0; b < Raw::kBlocks; ++b) {
      const int block = block_of(step) + b;
      if (block >= rows.blocks) break;
      float x[R][8];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int row = rows.first + (r < rows.count ? r : rows.count - 1);
        const auto* from = reinterpret_cast<const Words4*>(
            in.floats + int64_t{row} * in.groups * kGroupInputs + block * 32 + t * 8);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Words4 v = LoadConst(from + half);
#pragma unroll
          for (int i = 0; i < 4; ++i) x[r][half * 4 + i] = BitsFloat(static_cast<int32_t>(v.w[i]));
        }
      }
#pragma unroll
      for (int n = 0; n < kStripTiles; ++n) {
        if (strip * kStripTiles + n >= w.tiles) continue;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          float f[8];
          raw.eight[n][b][high].Unpack(f);
#pragma unroll
          for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) acc[n][r][high] = Fma(f[i], x[r][i], acc[n][r][high]);
          }
        }
      }
    }
    raw = next;
  }
  StoreLaneSums(acc, rows, part, sums);
}

template <WeightType kType, int R, bool kMma, typename Start>
WITHY_DEVICE void TypedPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                            int part, const PartSums& sums, const Start& start) {
  if constexpr (!IsQuantized(kType)) {
    // Eight rows at a time: more do not fit into registers.
    constexpr int kRows = R < 8 ? R : 8;
    for (int first = 0; first < R && first < rows.count; first += kRows) {
      const StripRows some = {rows.first + first, rows.count - first, rows.blocks};
      const PartSums to = {sums.at + first * sums.stride, sums.rows, sums.stride};
      FloatPart<kType, kRows>(w, in, strip, some, part, to, [&] {
        if (first == 0) start();
      });
    }
  } else if constexpr (kMma) {
    MmaPart<kType, R>(w, in, strip, rows, part, sums, start);
  } else {
    DotPart<kType, R>(w, in, strip, rows, part, sums, start);
  }
}

template <int R, bool kMma, typename Start>
WITHY_DEVICE void AnyPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                          int part, const PartSums& sums, const Start& start) {
  switch (w.type) {
    case WeightType::kF32:
      return TypedPart<WeightType::kF32, R, kMma>(w, in, strip, rows, part, sums, start);
    case WeightType::kF16:
      return TypedPart<WeightType::kF16, R, kMma>(w, in, strip, rows, part, sums, start);
    case WeightType::kBf16:
      return TypedPart<WeightType::kBf16, R, kMma>(w, in, strip, rows, part, sums, start);
    case WeightType::kQ8:
      return TypedPart<WeightType::kQ8, R, kMma>(w, in, strip, rows, part, sums, start);
    case WeightType::kQ4:
      return TypedPart<WeightType::kQ4, R, kMma>(w, in, strip, rows, part, sums, start);
    case WeightType::kQ4M:
      return TypedPart<WeightType::kQ4M, R, kMma>(w, in, strip, rows, part, sums, start);
    case WeightType::kFp4:
    case WeightType::kNl4:
      break;  // DeviceType
  }
}

WITHY_DEVICE float AddParts(const PartSums& sums, int row, int output) {
  float v = LoadShared(sums.Of(0, row, output));
#pragma unroll
  for (int part = 1; part < kParts; ++part) v += LoadShared(sums.Of(part, row, output));
  return v;
}

// What an output is before the product is added to it; 0: it is not added.
WITHY_DEVICE float ReadOld(const Product& p, int strip, int row) {
  const int o = strip * kStripOutputs + ThreadX() % 32;
  return p.add && o < p.w.n_out ? Load(p.y + row * p.y_stride + o) : 0.0f;
}

// A warp finishes the strip of one row: a lane has output strip * 32 + lane.
// `old`: ReadOld.
WITHY_DEVICE void FinishRow(const Product& p, int strip, int row, float v, float old) {
  const int o = strip * kStripOutputs + ThreadX() % 32;
  const int extent = p.out_extent != nullptr ? LoadConst(p.out_extent + row) : p.w.n_out;
  if (o < extent) {
    if (p.add) v = old + v;
    Store(p.y + row * p.y_stride + o, v);
  }
  if (p.next_weight == nullptr) return;
  const bool real = o < p.w.n_out;
  WriteNormedBlock(p.next, p.x_row + row, strip, real ? v : 0.0f,
                   real ? LoadConst(p.next_weight + o) : 0.0f, p.quantise, p.keep_floats);
}

// silu(gate) * up, for finite inputs.
WITHY_DEVICE float SwiGlu(float gate, float up) {
  const float e = Exp(-Abs(gate));
  const float sigmoid = Divide(gate >= 0.0f ? 1.0f : e, e + 1.0f);
  return gate * sigmoid * up;
}

WITHY_DEVICE void FinishNeurons(const Product& p, int strip, int row, float gate, float up) {
  const int o = strip * kStripOutputs + ThreadX() % 32;
  const int extent = p.out_extent != nullptr ? LoadConst(p.out_extent + row) : p.w.n_out;
  const int of_pass = p.x_row + row;
  const LowRankRun* run = RunOf(p.runs, p.run_count, of_pass);
  float h = 0.0f;
  if (o < extent) {
    if (run != nullptr) {
      const float* a = p.a + int64_t{of_pass} * p.a_stride;
      gate = AddLowRank(run->b[0], a + run->a_offset[0], o, gate);
      up = AddLowRank(run->b[1], a + run->a_offset[1], o, up);
    }
    h = SwiGlu(gate, up);
  }
  WriteBlock(p.neurons, of_pass, strip, h, p.quantise, p.keep_floats);
}

// Shared memory of a thread block.
constexpr int ProductSharedFloats(int rows, bool fused) {
  return kParts * rows * ((fused ? 2 : 1) * kStripOutputs + 4);
}

// Products of R rows a thread block; grid [row blocks, strips of all products]: blocks
// that multiply the same weights run side by side and find them in the cache.
template <int R, bool kMma, bool kFused>
WITHY_GLOBAL void WITHY_BLOCKS(kThreads, R == 1 && !kFused ? 2 : 1)
    ProductKernel(ProductArgs args) {
  LetNextStart();
  int n = 0;
  while (n + 1 < args.count && BlockY() >= args.products[n + 1].first_strip) ++n;
  const Product& p = args.products[n];
  const int strip = BlockY() - p.first_strip;
  const int first = BlockX() * R;
  StripRows rows;
  rows.first = p.x_row + first;
  rows.count = p.rows - first < R ? p.rows - first : R;
  if (rows.count <= 0) return;  // no wait: it writes nothing
  const int outputs = p.out_extent != nullptr ? LoadConst(p.out_extent + first) : p.w.n_out;
  const bool computes = strip * kStripOutputs < outputs;
  if (!computes && !kFused) return;  // neurons beyond the extent are zero for the next product
  const int inputs = p.in_extent != nullptr ? LoadConst(p.in_extent + first) : p.w.n_in;
  rows.blocks = (inputs + 31) / 32;
  const PartSums sums = {reinterpret_cast<float*>(SharedMemory()), R,
                         (kFused ? 2 : 1) * kStripOutputs + 4};
  const int part = ThreadX() / 32;
  const int lane = ThreadX() % 32;
  // What finishing a row reads, for the warp's first row; on its way while the weights are.
  float squares = 0.0f;
  float old = 0.0f;
  const auto read_row = [&](int r) {
    if (p.normed) squares = SumOfSquares(p.x, p.x_row + first + r, p.w.n_in);
    if (!kFused) old = ReadOld(p, strip, first + r);
  };
  const auto start = [&] {
    WaitForPrior();
    if (part < rows.count) read_row(part);
  };
  if (computes) {
    AnyPart<R, kMma>(p.w, p.x, strip, rows, part, sums, start);
    if constexpr (kFused) {
      const PartSums of_up = {sums.at + kStripOutputs, sums.rows, sums.stride};
      AnyPart<R, kMma>(p.up, p.x, strip, rows, part, of_up, [] {});
    }
  } else {
    start();
  }
  SyncBlock();
  for (int r = part; r < rows.count; r += kThreads / 32) {
    const int row = first + r;
    if (r != part) read_row(r);
    float v = computes ? AddParts(sums, r, lane) : 0.0f;
    float up = 0.0f;
    if constexpr (kFused) up = computes ? AddParts(sums, r, kStripOutputs + lane) : 0.0f;
    if (p.normed) {
      const float factor = NormFactor(squares, p.w.n_in, p.epsilon);
      v = v * factor;
      up = up * factor;
    }
    if constexpr (kFused) {
      FinishNeurons(p, strip, row, v, up);
    } else {
      FinishRow(p, strip, row, v, old);
    }
  }
}

}  // namespace withy::engine::WITHY_GPU
