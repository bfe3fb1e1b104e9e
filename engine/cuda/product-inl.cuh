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

template <WeightType kType>
WITHY_DEVICE void LoadWeights(const Matrix& w, int tile, int group,
                              uint32_t (&a)[kGroupBlocks][4]) {
  const int lane = ThreadX() % 32;
  if constexpr (kType == WeightType::kQ8) {
    const auto* from = reinterpret_cast<const Words4*>(
        w.quants + (int64_t{tile} * w.blocks + group * kGroupBlocks) * 512);
#pragma unroll
    for (int b = 0; b < kGroupBlocks; ++b) {
      Words4 v = {};
      if (group * kGroupBlocks + b < w.blocks) v = LoadStream(from + b * 32 + lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[b][i] = v.w[i];
    }
  } else {
    const int pairs = (w.blocks + 1) / 2;
    const auto* from =
        reinterpret_cast<const Words4*>(w.quants + (int64_t{tile} * pairs + group * 2) * 512);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      Words4 v = {};
      if (group * 2 + pair < pairs) v = LoadStream(from + pair * 32 + lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[pair * 2 + i / 2][i % 2] = v.w[i] & 0x0f0f0f0fu;
        a[pair * 2 + i / 2][i % 2 + 2] = (v.w[i] >> 4) & 0x0f0f0f0fu;
      }
    }
  }
}

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

// Part `part` of the sums of R rows, by dp4a.
template <WeightType kType, int R>
WITHY_DEVICE void DotPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                          int part, const PartSums& sums) {
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  float acc[kStripTiles][R][2] = {};
  for (int group = part; group * kGroupBlocks < rows.blocks; group += kParts) {
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
      const int tile = strip * kStripTiles + n;
      if (tile >= w.tiles) continue;
      uint32_t a[kGroupBlocks][4];
      LoadWeights<kType>(w, tile, group, a);
      const int64_t meta = (int64_t{tile} * w.groups + group) * 32 + lane;
      const uint32_t scales = LoadConst(reinterpret_cast<const uint32_t*>(w.scales) + meta);
      uint32_t mins = 0;
      if constexpr (kType == WeightType::kQ4M) {
        mins = LoadConst(reinterpret_cast<const uint32_t*>(w.mins) + meta);
      }
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
  }
#pragma unroll
  for (int n = 0; n < kStripTiles; ++n) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float v = acc[n][r][i];
        v += ShuffleXor(v, 1);
        v += ShuffleXor(v, 2);
        if (t == 0 && r < rows.count) StoreShared(sums.Of(part, r, n * 16 + g + 8 * i), v);
      }
    }
  }
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
template <WeightType kType, int R>
WITHY_DEVICE void MmaPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                          int part, const PartSums& sums) {
  constexpr int kEights = R / 8;
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  float acc[kStripTiles][kEights][4][kGroupBlocks] = {};
  for (int group = part; group * kGroupBlocks < rows.blocks; group += kParts) {
    MmaInputs inputs[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      inputs[e] = LoadMmaInputs<kType>(in, rows, e * 8, group);
    }
#pragma unroll
    for (int n = 0; n < kStripTiles; ++n) {
      const int tile = strip * kStripTiles + n;
      if (tile >= w.tiles) continue;
      uint32_t a[kGroupBlocks][4];
      LoadWeights<kType>(w, tile, group, a);
      const int64_t meta = (int64_t{tile} * w.groups + group) * 8 + g;
      const Words4 scales = LoadConst(reinterpret_cast<const Words4*>(w.scales) + meta);
      Words4 mins = {};
      if constexpr (kType == WeightType::kQ4M) {
        mins = LoadConst(reinterpret_cast<const Words4*>(w.mins) + meta);
      }
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

// Eight float weights of a row: `k_half` is a part of [tile][block][rows g, g + 8].
template <WeightType kType>
WITHY_DEVICE void LoadFloats(const Matrix& w, int64_t part, int lane, float (&f)[8]) {
  if constexpr (kType == WeightType::kF32) {
    const auto* from = reinterpret_cast<const Words4*>(w.quants) + part * 64 + lane;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 v = LoadStream(from + half * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) f[half * 4 + i] = BitsFloat(static_cast<int32_t>(v.w[i]));
    }
  } else {
    const Words4 v = LoadStream(reinterpret_cast<const Words4*>(w.quants) + part * 32 + lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == WeightType::kF16) {
        f[2 * i] = LowHalf(v.w[i]);
        f[2 * i + 1] = HighHalf(v.w[i]);
      } else {
        f[2 * i] = BitsFloat(static_cast<int32_t>(v.w[i] << 16));
        f[2 * i + 1] = BitsFloat(static_cast<int32_t>(v.w[i] & 0xffff0000u));
      }
    }
  }
}

// Float weights: each lane sums its inputs 8t .. 8t + 7 of every block in order.
template <WeightType kType, int R>
WITHY_DEVICE void FloatPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                            int part, const PartSums& sums) {
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  float acc[kStripTiles][R][2] = {};
  for (int group = part; group * kGroupBlocks < rows.blocks; group += kParts) {
    for (int b = 0; b < kGroupBlocks; ++b) {
      const int block = group * kGroupBlocks + b;
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
        const int tile = strip * kStripTiles + n;
        if (tile >= w.tiles) continue;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          float f[8];
          LoadFloats<kType>(w, (int64_t{tile} * w.blocks + block) * 2 + high, lane, f);
#pragma unroll
          for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) acc[n][r][high] = Fma(f[i], x[r][i], acc[n][r][high]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kStripTiles; ++n) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float v = acc[n][r][i];
        v += ShuffleXor(v, 1);
        v += ShuffleXor(v, 2);
        if (t == 0 && r < rows.count) StoreShared(sums.Of(part, r, n * 16 + g + 8 * i), v);
      }
    }
  }
}

template <WeightType kType, int R, bool kMma>
WITHY_DEVICE void TypedPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                            int part, const PartSums& sums) {
  if constexpr (!IsQuantized(kType)) {
    // Eight rows at a time: more do not fit into registers.
    constexpr int kRows = R < 8 ? R : 8;
    for (int first = 0; first < R && first < rows.count; first += kRows) {
      const StripRows some = {rows.first + first, rows.count - first, rows.blocks};
      const PartSums to = {sums.at + first * sums.stride, sums.rows, sums.stride};
      FloatPart<kType, kRows>(w, in, strip, some, part, to);
    }
  } else if constexpr (kMma) {
    MmaPart<kType, R>(w, in, strip, rows, part, sums);
  } else {
    DotPart<kType, R>(w, in, strip, rows, part, sums);
  }
}

template <int R, bool kMma>
WITHY_DEVICE void AnyPart(const Matrix& w, const Inputs& in, int strip, const StripRows& rows,
                          int part, const PartSums& sums) {
  switch (w.type) {
    case WeightType::kF32:
      return TypedPart<WeightType::kF32, R, kMma>(w, in, strip, rows, part, sums);
    case WeightType::kF16:
      return TypedPart<WeightType::kF16, R, kMma>(w, in, strip, rows, part, sums);
    case WeightType::kBf16:
      return TypedPart<WeightType::kBf16, R, kMma>(w, in, strip, rows, part, sums);
    case WeightType::kQ8:
      return TypedPart<WeightType::kQ8, R, kMma>(w, in, strip, rows, part, sums);
    case WeightType::kQ4:
      return TypedPart<WeightType::kQ4, R, kMma>(w, in, strip, rows, part, sums);
    case WeightType::kQ4M:
      return TypedPart<WeightType::kQ4M, R, kMma>(w, in, strip, rows, part, sums);
  }
}

WITHY_DEVICE float AddParts(const PartSums& sums, int row, int output) {
  float v = LoadShared(sums.Of(0, row, output));
#pragma unroll
  for (int part = 1; part < kParts; ++part) v += LoadShared(sums.Of(part, row, output));
  return v;
}

// A warp finishes the strip of one row: a lane has output strip * 32 + lane.
WITHY_DEVICE void FinishRow(const Product& p, int strip, int row, float v) {
  const int o = strip * kStripOutputs + ThreadX() % 32;
  const int extent = p.out_extent != nullptr ? LoadConst(p.out_extent + row) : p.w.n_out;
  float* y = p.y + row * p.y_stride + o;
  if (o < extent) {
    if (p.add) v = Load(y) + v;
    Store(y, v);
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
WITHY_GLOBAL void WITHY_THREADS(kThreads) ProductKernel(ProductArgs args) {
  int n = 0;
  while (n + 1 < args.count && BlockY() >= args.products[n + 1].first_strip) ++n;
  const Product& p = args.products[n];
  const int strip = BlockY() - p.first_strip;
  const int first = BlockX() * R;
  StripRows rows;
  rows.first = p.x_row + first;
  rows.count = p.rows - first < R ? p.rows - first : R;
  if (rows.count <= 0) return;
  const int outputs = p.out_extent != nullptr ? LoadConst(p.out_extent + first) : p.w.n_out;
  const bool computes = strip * kStripOutputs < outputs;
  if (!computes && !kFused) return;  // neurons beyond the extent are zero for the next product
  const int inputs = p.in_extent != nullptr ? LoadConst(p.in_extent + first) : p.w.n_in;
  rows.blocks = (inputs + 31) / 32;
  const PartSums sums = {reinterpret_cast<float*>(SharedMemory()), R,
                         (kFused ? 2 : 1) * kStripOutputs + 4};
  const int part = ThreadX() / 32;
  if (computes) {
    AnyPart<R, kMma>(p.w, p.x, strip, rows, part, sums);
    if constexpr (kFused) {
      const PartSums of_up = {sums.at + kStripOutputs, sums.rows, sums.stride};
      AnyPart<R, kMma>(p.up, p.x, strip, rows, part, of_up);
    }
  }
  SyncBlock();
  const int lane = ThreadX() % 32;
  for (int r = part; r < rows.count; r += kThreads / 32) {
    const int row = first + r;
    float v = computes ? AddParts(sums, r, lane) : 0.0f;
    float up = 0.0f;
    if constexpr (kFused) up = computes ? AddParts(sums, r, kStripOutputs + lane) : 0.0f;
    if (p.normed) {
      const float factor = NormFactor(p.x, p.x_row + row, p.w.n_in, p.epsilon);
      v = v * factor;
      up = up * factor;
    }
    if constexpr (kFused) {
      FinishNeurons(p, strip, row, v, up);
    } else {
      FinishRow(p, strip, row, v);
    }
  }
}

}  // namespace withy::engine::WITHY_GPU
