// Kernels that are no product and no attention: repacking of weights, embedding, norm,
// quantisation. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

using namespace cuda;  // NOLINT: the arguments

// Byte of input k of a group in Inputs::quants.
WITHY_DEVICE int QuantByte(int k) {
  const int block = k / 32;
  const int quad = k % 32 / 4;
  return block / 2 * 64 + quad % 4 * 16 + block % 2 * 8 + quad / 4 * 4 + k % 4;
}

// A warp writes one block of 32 inputs of a row, a lane each.
WITHY_DEVICE void WriteBlock(const Inputs& to, int row, int block, float v, bool quantise,
                             bool keep_floats) {
  const int lane = ThreadX() % 32;
  const int64_t inputs = int64_t{row} * to.groups * kGroupInputs;
  if (keep_floats) Store(to.floats + inputs + block * 32 + lane, v);
  if (!quantise) return;
  const float max = WarpMax(Abs(v));
  const float inverse = max > 1e-30f ? Divide(127.0f, max) : 0.0f;
  // NaN becomes -127, as on the CPU: damaged weights give wrong numbers, not undefined behaviour.
  const float clamped = v * inverse > -127.0f ? v * inverse : -127.0f;
  const int32_t q = RoundToInt(clamped);
  const int32_t sum = WarpSum(q);
  Store(to.quants + inputs + block / kGroupBlocks * kGroupInputs +
            QuantByte(block % kGroupBlocks * 32 + lane),
        static_cast<int8_t>(q));
  if (lane != 0) return;
  const int64_t at = int64_t{row} * to.groups * kGroupBlocks + block;
  Store(to.scales + at, Divide(max, 127.0f));
  Store(to.sums + at, sum);
}

// The same of a norm's input x with its weight: leaves the block's sum of squares, too.
WITHY_DEVICE void WriteNormedBlock(const Inputs& to, int row, int block, float x, float weight,
                                   bool quantise, bool keep_floats) {
  const float squares = WarpSum(x * x);
  if (ThreadX() % 32 == 0) {
    Store(to.squares + int64_t{row} * to.groups * kGroupBlocks + block, squares);
  }
  WriteBlock(to, row, block, x * weight, quantise, keep_floats);
}

// A lane's part of the sum of squares of a row.
WITHY_DEVICE float SumOfSquares(const Inputs& x, int row, int width) {
  const int blocks = (width + 31) / 32;
  float sum = 0.0f;
  for (int b = ThreadX() % 32; b < blocks; b += 32) {
    sum += Load(x.squares + int64_t{row} * x.groups * kGroupBlocks + b);
  }
  return sum;
}
// The factor of a row's norm: 1 / sqrt(mean of squares + epsilon). All lanes of a warp take part.
WITHY_DEVICE float NormFactor(float squares, int width, float epsilon) {
  const float sum = WarpSum(squares);
  return Divide(1.0f, SquareRoot(Divide(sum, static_cast<float>(width)) + epsilon));
}

// B of output o and rank r.
WITHY_DEVICE float LowRankWeight(const LowRank& b, int o, int r) {
  const uint8_t* block = b.data + static_cast<int64_t>(o / 32) * b.rank * 36;
  const float scale = LoadConst(reinterpret_cast<const float*>(block) + r);
  const auto q = static_cast<int8_t>(LoadConst(block + b.rank * 4 + r * 32 + o % 32));
  return static_cast<float>(q) * scale;
}
// v + output o of B * a.
WITHY_DEVICE float AddLowRank(const LowRank& b, const float* a, int o, float v) {
  if (o >= b.outputs) return v;
  for (int r = 0; r < b.rank; ++r) v = Fma(Load(a + r), LowRankWeight(b, o, r), v);
  return v;
}
// The run of a row; null if it has no LoRA.
WITHY_DEVICE const LowRankRun* RunOf(const LowRankRun* runs, int count, int row) {
  for (int i = 0; i < count; ++i) {
    if (row >= runs[i].first && row < runs[i].first + runs[i].rows) return runs + i;
  }
  return nullptr;
}

WITHY_DEVICE float Bf16Float(uint16_t v) {
  return BitsFloat(static_cast<int32_t>(static_cast<uint32_t>(v) << 16));
}

// Element (o, k) of a matrix.
WITHY_DEVICE float Element(const Matrix& m, int o, int k) {
  const int64_t tile = o / 16;
  const int row = o % 16;
  const int g = row % 8;
  const int high = row / 8;
  const int64_t block = k / 32;
  const int i = k % 32;
  if (!IsQuantized(m.type)) {
    const int64_t part = (tile * m.blocks + block) * 2 + high;
    if (m.type == WeightType::kF32) {
      const int64_t at = ((part * 2 + i % 8 / 4) * 32 + g * 4 + i / 8) * 4 + i % 4;
      return LoadConst(reinterpret_cast<const float*>(m.quants) + at);
    }
    const int64_t at = (part * 32 + g * 4 + i / 8) * 8 + i % 8;
    const uint16_t half = LoadConst(reinterpret_cast<const uint16_t*>(m.quants) + at);
    return m.type == WeightType::kF16 ? HalfFloat(half) : Bf16Float(half);
  }
  const int64_t meta = (tile * m.groups + block / 4) * 64 + g * 8 + block % 4 * 2 + high;
  const float scale = HalfFloat(LoadConst(m.scales + meta));
  const int quad = i / 4;
  if (m.type == WeightType::kQ8) {
    const int64_t at = (tile * m.blocks + block) * 512 + (g * 4 + quad % 4) * 16 +
                       (quad / 4 * 2 + high) * 4 + i % 4;
    return scale * static_cast<float>(static_cast<int8_t>(LoadConst(m.quants + at)));
  }
  const int64_t at = (tile * ((m.blocks + 1) / 2) + block / 2) * 512 + (g * 4 + quad % 4) * 16 +
                     (block % 2 * 2 + high) * 4 + i % 4;
  const int byte = LoadConst(m.quants + at);
  const int q = quad >= 4 ? byte >> 4 : byte & 15;
  if (m.type == WeightType::kQ4) return scale * static_cast<float>(q - 8);
  return Fma(scale, static_cast<float>(q), HalfFloat(LoadConst(m.mins + meta)));
}

// ---- repacking: one warp converts one (tile, block) ----

struct PackedTile {
  const uint8_t* scales;
  const uint8_t* mins;
  const uint8_t* quants;
};

WITHY_DEVICE int64_t Pad64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Parts of the tile that has the block, and the block's index within it.
WITHY_DEVICE PackedTile FindTile(const PackedArgs& args, int tile, int block, int* local) {
  const Matrix& m = args.to;
  const int panel_blocks = args.panels == 1 ? m.blocks : args.panel_inputs / 32;
  const int panel = block / panel_blocks;
  *local = block - panel * panel_blocks;
  const auto tile_bytes = [&](int64_t blocks) -> int64_t {
    const int64_t inputs = blocks * 32;
    const int64_t meta = Pad64(blocks * 32);
    switch (args.from) {
      case WeightType::kF32:
        return inputs * 64;
      case WeightType::kF16:
      case WeightType::kBf16:
        return inputs * 32;
      case WeightType::kQ8:
        return meta + inputs * 16;
      case WeightType::kQ4:
      case WeightType::kFp4:
      case WeightType::kNl4:
        return meta + inputs * 8;
      default:
        return 2 * meta + inputs * 8;
    }
  };
  int blocks = m.blocks - panel * panel_blocks;
  if (blocks > panel_blocks) blocks = panel_blocks;
  const uint8_t* at =
      args.data + int64_t{panel} * m.tiles * tile_bytes(panel_blocks) + tile * tile_bytes(blocks);
  const int64_t meta = IsQuantized(m.type) ? Pad64(int64_t{blocks} * 32) : 0;
  return {at, at + meta, at + (m.type == WeightType::kQ4M ? 2 * meta : meta)};
}

WITHY_DEVICE void RepackFloats(const Matrix& m, const uint8_t* from, int64_t part, int g, int t) {
  for (int high = 0; high < 2; ++high) {
    const int row = g + 8 * high;
    for (int i = 0; i < 8; ++i) {
      const int k = t * 8 + i;
      if (m.type == WeightType::kF32) {
        const float v = LoadConst(reinterpret_cast<const float*>(from) + k * 16 + row);
        Store(reinterpret_cast<float*>(m.quants) +
                  (((part * 2 + high) * 2 + i / 4) * 32 + g * 4 + t) * 4 + i % 4,
              v);
      } else {
        const uint16_t v = LoadConst(reinterpret_cast<const uint16_t*>(from) + k * 16 + row);
        Store(reinterpret_cast<uint16_t*>(m.quants) + ((part * 2 + high) * 32 + g * 4 + t) * 8 + i,
              v);
      }
    }
  }
}

// The values of the indices in the low halves of four bytes.
WITHY_DEVICE uint32_t TableWord(WeightType type, uint32_t indices) {
  constexpr uint32_t kFp4Words[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
  constexpr uint32_t kNl4Words[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
  uint32_t values = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t index = indices >> (8 * i) & 15u;
    const uint32_t word = type == WeightType::kFp4 ? kFp4Words[index / 4] : kNl4Words[index / 4];
    values |= (word >> (index % 4 * 8) & 255u) << (8 * i);
  }
  return values;
}

WITHY_GLOBAL void WITHY_THREADS(kThreads) RepackKernel(PackedArgs args) {
  const Matrix& m = args.to;
  const int block = BlockX() * (kThreads / 32) + ThreadX() / 32;
  const int tile = args.first_tile + BlockY();
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  if (block >= args.blocks) return;
  int local = 0;
  const PackedTile from = FindTile(args, BlockY(), block, &local);
  const int64_t at = int64_t{tile} * m.blocks + block;
  if (!IsQuantized(m.type)) {
    const int64_t bytes = m.type == WeightType::kF32 ? 2048 : 1024;
    RepackFloats(m, from.quants + local * bytes, at, g, t);
    return;
  }
  if (lane < 16) {
    const int64_t to =
        (int64_t{tile} * m.groups + block / 4) * 64 + lane % 8 * 8 + block % 4 * 2 + lane / 8;
    Store(m.scales + to,
          LoadConst(reinterpret_cast<const uint16_t*>(from.scales) + local * 16 + lane));
    if (m.type == WeightType::kQ4M) {
      Store(m.mins + to,
            LoadConst(reinterpret_cast<const uint16_t*>(from.mins) + local * 16 + lane));
    }
  }
  if (m.type == WeightType::kQ8) {
    const bool indices = args.from != WeightType::kQ8;
    const auto* words =
        reinterpret_cast<const uint32_t*>(from.quants + int64_t{local} * (indices ? 256 : 512));
    const auto word = [&](int quad, int row) {
      if (!indices) return LoadConst(words + quad * 16 + row) ^ 0x80808080u;
      const uint32_t pairs = LoadConst(words + quad % 4 * 16 + row);
      return TableWord(args.from, quad < 4 ? pairs : pairs >> 4);
    };
    Store(reinterpret_cast<Words4*>(m.quants + at * 512) + lane,
          Words4{{word(t, g), word(t, g + 8), word(t + 4, g), word(t + 4, g + 8)}});
    return;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(from.quants + int64_t{local} * 256);
  const int64_t pair = int64_t{tile} * ((m.blocks + 1) / 2) + block / 2;
  Store(reinterpret_cast<Words2*>(m.quants + pair * 512 + lane * 16 + block % 2 * 8),
        Words2{{LoadConst(words + t * 16 + g), LoadConst(words + t * 16 + g + 8)}});
}

// ---- one thread block for each row ----

WITHY_GLOBAL void WITHY_THREADS(kThreads) EmbedKernel(EmbedArgs args) {
  LetNextStart();
  WaitForPrior();
  const int row = BlockX();
  const int token = LoadConst(args.tokens + row);
  for (int k = ThreadX(); k < args.width; k += kThreads) {
    const int64_t at = int64_t{row} * args.width + k;
    Store(args.x + at, args.fetched != nullptr ? LoadConst(args.fetched + at)
                                               : Element(args.embedding, token, k));
  }
}

WITHY_GLOBAL void WITHY_THREADS(kThreads) NormKernel(NormArgs args) {
  LetNextStart();
  WaitForPrior();
  const int row = BlockX();
  const int lane = ThreadX() % 32;
  const LowRankRun* run = RunOf(args.runs, args.run_count, row);
  const int to_row = args.map == nullptr ? row : LoadConst(args.map + row);
  for (int block = ThreadX() / 32; block * 32 < args.width; block += kThreads / 32) {
    const int k = block * 32 + lane;
    float x = 0.0f;
    float weight = 0.0f;
    if (k < args.width) {
      float* at = args.x + int64_t{row} * args.width + k;
      x = Load(at);
      if (run != nullptr) {
        x = AddLowRank(run->b[0], args.a + int64_t{row} * args.a_stride + run->a_offset[0], k, x);
        if (args.added == nullptr) Store(at, x);
      }
      if (args.added != nullptr) {
        Store(args.added + int64_t{row} * args.width + k, x);
      } else {
        weight = LoadConst(args.weight + k);
      }
    }
    if (args.added == nullptr) {
      WriteNormedBlock(args.to, to_row, block, x, weight, args.quantise, args.keep_floats);
    }
  }
}

// Moves the wanted rows to the front. A row is never behind the place that it moves to.
WITHY_GLOBAL void WITHY_THREADS(kThreads) KeepKernel(KeepArgs args) {
  LetNextStart();
  WaitForPrior();
  const int k = BlockX() * kThreads + ThreadX();
  if (k >= args.width) return;
  for (int i = 0; i < args.count; ++i) {
    const int from = LoadConst(args.wanted + i);
    if (from != i) {
      Store(args.x + int64_t{i} * args.width + k, Load(args.x + int64_t{from} * args.width + k));
    }
  }
}

}  // namespace withy::engine::WITHY_GPU
