// Attention of tiles, second half: probabilities x V, and the kernel. Its layout of fragments is
// that of attention_tile-inl.cuh. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

// Which dimensions, keys and queries a warp takes of probabilities x V. Where there are dimensions
// for four warps at most, two warps share the keys, and more the queries.
template <int kSteps>
struct ValueShare {
  static constexpr int kParts = kSteps <= 4 ? 2 : 1;  // of the keys
  static constexpr int kPairs = kRunKeys / 64 / kParts;
  int block;  // of 32 dimensions
  int part;
  int first;  // of the sixteens of queries
  int stride;
  bool works;

  WITHY_DEVICE ValueShare(int head_dim, int queries) {
    const int blocks = head_dim / 32;
    const int warp = ThreadX() / 32;
    stride = kWarps / (blocks * kParts);
    block = warp % blocks;
    part = warp / blocks % kParts;
    first = warp / (blocks * kParts);
    works = first < stride && first * 16 < queries;
  }
};

// Fragments of V: of 64 keys the quads of the t-th group, of dimension 4g + i of the warp's 32.
template <int kPairs>
struct ValueFragments {
  uint32_t v[kPairs][4][4];
  VWidth width[kPairs];
};

// Has a warp's V brought into the second-level cache: registers for it are free later.
template <int kSteps>
WITHY_DEVICE void PrefetchValues(const AttendArgs& args, const Tile& tile,
                                 const ValueShare<kSteps>& share) {
  constexpr int kPairs = ValueShare<kSteps>::kPairs;
  const int lane = ThreadX() % 32;
  if (!share.works) return;
#pragma unroll 1
  for (int pair = 0; pair < kPairs; ++pair) {
    const int group = (share.part * kPairs + pair) * 4 + lane % 4;
    if (group * kChunkTokens >= tile.keys) return;
    const KvFormat format = tile.Format(group);
    const VWidth width = WidthOf(format);
    // 128 bytes are 32 dimensions of one quad at 8 bits, 16 of four at 4, 32 of four at 2.
    const int stride = width == kV8 ? args.shape.head_dim * 4 : 128;
    const uint8_t* v = LoadShared(&tile.shared()->blocks.block[group]) +
                       LoadShared(&tile.shared()->blocks.places[group]).v +
                       share.block * (width == kV4 ? 256 : 128) + lane / 4 * 16;
    for (int line = 0; line < (width == kV8 ? 4 : width == kV4 ? 2 : 1); ++line) {
      Prefetch(v + line * stride);
    }
  }
}

// Loads them as they lie in blocks; UnpackValues makes fragments of them once they have arrived.
template <int kSteps>
WITHY_DEVICE void LoadValues(const AttendArgs& args, const Tile& tile,
                             const ValueShare<kSteps>& share,
                             ValueFragments<ValueShare<kSteps>::kPairs>* to) {
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
  const int d = share.block * 32 + g * 4;
#pragma unroll
  for (int pair = 0; pair < ValueShare<kSteps>::kPairs; ++pair) {
    const int group = (share.part * ValueShare<kSteps>::kPairs + pair) * 4 + t;
    const bool exists = share.works && group * kChunkTokens < tile.keys;
    const VWidth width = exists ? WidthOf(tile.Format(group)) : kV8;
    to->width[pair] = width;
    const int lines = !exists ? 0 : width == kV8 ? 4 : width == kV4 ? 2 : 1;
    const int stride = width == kV8 ? args.shape.head_dim * 4 : 64;
    const int at = width == kV8 ? d * 4 : d / 16 * 64 * lines + d % 16 * 4;
    const uint8_t* v = nullptr;
    if (exists) {
      v = LoadShared(&tile.shared()->blocks.block[group]) +
          LoadShared(&tile.shared()->blocks.places[group]).v + at;
    }
#pragma unroll
    for (int line = 0; line < 4; ++line) {
      Words4 words = {};
      if (line < lines) words = LoadConst(reinterpret_cast<const Words4*>(v + line * stride));
#pragma unroll
      for (int i = 0; i < 4; ++i) to->v[pair][line][i] = words.w[i];
    }
  }
}

template <int kPairs>
WITHY_DEVICE void UnpackValues(ValueFragments<kPairs>* values) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const VWidth width = values->width[pair];
    if (width == kV8) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t first = values->v[pair][0][i];
      const uint32_t second = values->v[pair][1][i];
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        values->v[pair][quad][i] = width == kV4
                                       ? (quad < 2 ? first : second) >> (quad % 2 * 4) & 0x0f0f0f0fu
                                       : first >> (2 * quad) & 0x03030303u;
      }
    }
  }
}

// Sums of probabilities x V of one width, of the queries m + g and m + g + 8: 128 times those of
// the high halves and those of the low ones.
template <int kSteps, bool kMixed>
WITHY_DEVICE void SumTileValues(const Tile& tile, int m, int width, const ValueShare<kSteps>& share,
                                const ValueFragments<ValueShare<kSteps>::kPairs>& values,
                                int32_t (&sums)[4][4]) {
  constexpr int kPairs = ValueShare<kSteps>::kPairs;
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
  const uint8_t* of_g = tile.Probabilities(m + g) + t * 16;
  const uint8_t* of_g8 = of_g + 8 * kScoreFloats * sizeof(float);
#pragma unroll
  for (int low = 0; low < 2; ++low) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int key = (share.part * kPairs + pair) * 64;
      if (key >= tile.keys) break;
      const Words4 p = LoadShared(reinterpret_cast<const Words4*>(of_g + low * kRunKeys + key));
      const Words4 p8 = LoadShared(reinterpret_cast<const Words4*>(of_g8 + low * kRunKeys + key));
      const bool has = !kMixed || values.width[pair] == width;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t a[4] = {p.w[2 * half], p8.w[2 * half], p.w[2 * half + 1],
                               p8.w[2 * half + 1]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t b[2] = {has ? values.v[pair][2 * half][i] : 0,
                                 has ? values.v[pair][2 * half + 1][i] : 0};
          MmaS8(sums[i], a, b);
        }
      }
    }
#pragma unroll
    for (int i = 0; low == 0 && i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sums[i][n] *= 128;
    }
  }
}

// A lane's sums of query m + g + 8 * high: dimensions 8t .. 8t + 7 of the warp's 32.
WITHY_DEVICE int32_t& SumOf(int32_t (&sums)[4][4], int high, int i) {
  return sums[i % 4][2 * high + i / 4];
}

// Adds the sums that the warps of part 1 have left in shared memory.
WITHY_DEVICE void AddOtherPart(const Tile& tile, int m, int block, int32_t (&sums)[4][4]) {
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 words = LoadShared(
          reinterpret_cast<const Words4*>(tile.Sums(m + g + 8 * high) + block * 128 + t * 32) +
          half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        SumOf(sums, high, half * 4 + i) += static_cast<int32_t>(words.w[i]);
      }
    }
  }
}
WITHY_DEVICE void LeavePart(const Tile& tile, int m, int block, int32_t (&sums)[4][4]) {
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Words4 words;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words.w[i] = static_cast<uint32_t>(SumOf(sums, high, half * 4 + i));
      }
      StoreShared(
          reinterpret_cast<Words4*>(tile.Sums(m + g + 8 * high) + block * 128 + t * 32) + half,
          words);
    }
  }
}

// out += sums of one width as floats.
WITHY_DEVICE void AddWidth(const Tile& tile, int m, int width, int32_t (&sums)[4][4],
                           float (&out)[2][8]) {
  const int g = ThreadX() % 32 / 4;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int q = m + g + 8 * high;
    if (q >= tile.queries) break;
    const uint32_t seen = SeenGroups(LoadShared(&tile.shared()->keys[q]));
    if ((LoadShared(&tile.shared()->groups[width]) & seen) == 0) continue;
    const float zeros = LoadShared(&tile.shared()->zeros[q][width]);
    const float unit = LoadShared(&tile.shared()->unit[LoadShared(&tile.shared()->row[q])][width]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float value = static_cast<float>(SumOf(sums, high, i)) - zeros;
      out[high][i] = Fma(value, unit, out[high][i]);
    }
  }
}

template <int kSteps, bool kMixed>
WITHY_DEVICE void TileValues(const Tile& tile, const ValueShare<kSteps>& share,
                             const ValueFragments<ValueShare<kSteps>::kPairs>& values) {
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
  // All warps take as many turns, for the barriers.
  const int sixteens = (tile.queries + 15) / 16;
  const int turns = (sixteens + share.stride - 1) / share.stride;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    const int m = (turn * share.stride + share.first) * 16;
    const bool works = share.works && m < tile.queries;
    float out[2][8] = {};
#pragma unroll 1
    for (int width = 0; width < kTileWidths; ++width) {
      if (LoadShared(&tile.shared()->groups[width]) == 0) continue;
      int32_t sums[4][4] = {};
      if (works) SumTileValues<kSteps, kMixed>(tile, m, width, share, values, sums);
      if constexpr (ValueShare<kSteps>::kParts == 2) {
        if (works && share.part == 1) LeavePart(tile, m, share.block, sums);
        SyncBlock();
        if (works && share.part == 0) AddOtherPart(tile, m, share.block, sums);
        if (kMixed) SyncBlock();  // the next width's sums take the same place
      }
      if (works && share.part == 0) AddWidth(tile, m, width, sums, out);
    }
    if (!works || share.part != 0) continue;
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int q = m + g + 8 * high;
      if (q >= tile.queries || LoadShared(&tile.shared()->keys[q]) <= 0) continue;
      StoreEight(LoadShared(&tile.shared()->part[q]) + share.block * 32 + t * 8, out[high], false);
    }
  }
}

// Attention of a tile's rows to the run. All read the blocks that the first one does.
template <int kSteps>
WITHY_DEVICE void AttendTileRows(const AttendArgs& args, const Tile& tile) {
  const Shape& shape = args.shape;
  TileShared* const s = tile.shared();
  FindBlocks(args, args.row[PlannedRow(args, tile.first)], tile.run, tile.keys, tile.heads.kv_head,
             &s->blocks);
  LoadTileQueries(args, tile);
  if (args.bias.pairs != nullptr) LoadTileBias(args, tile);
  SyncBlock();
  // All that is read is on its way before the first of it is waited for.
  const ValueShare<kSteps> share(shape.head_dim, tile.queries);
  const ValueScale v_scale = LoadValueScale(args, ThreadX(), tile.keys, s->blocks);
  PrefetchValues<kSteps>(args, tile, share);
  {
    KeyScales scales;
    LoadKeyScales(args, tile, &scales);
    KeyFragments<kSteps> keys;
    LoadKeys<kSteps>(args, tile, &keys);
    StoreValueScale(ThreadX(), v_scale, &s->values);
    FindGroups(tile);
    TileScores<kSteps>(args, tile, scales, keys);
  }
  ValueFragments<ValueShare<kSteps>::kPairs> values;
  LoadValues<kSteps>(args, tile, share, &values);  // they arrive during what follows
  SyncBlock();
  FindTileUnits(tile);
  SyncBlock();
  int widths = 0;
#pragma unroll
  for (int width = 0; width < kTileWidths; ++width) {
    widths += LoadShared(&s->groups[width]) != 0 ? 1 : 0;
  }
  if (widths == 1 && LoadShared(&s->groups[kV8]) != 0) {
    TileSoftmax<false>(args, tile);
  } else {
    TileSoftmax<true>(args, tile);
  }
  SyncBlock();
  UnpackValues(&values);
  if (widths == 1) {
    TileValues<kSteps, false>(tile, share, values);
  } else {
    TileValues<kSteps, true>(tile, share, values);
  }
}

// Grid [runs of the tile with most, KV heads, tiles]; kSteps * 32 is at least head_dim.
template <int kSteps>
WITHY_GLOBAL void WITHY_BLOCKS(kThreads, kSteps <= 4 ? 2 : 1) AttendTilesKernel(AttendArgs args) {
  LetNextStart();
  WaitForPrior();
  const Shape& shape = args.shape;
  const AttendTile& of_block = args.tiles[BlockZ()];
  if (BlockX() >= of_block.runs) return;
  Tile tile;
  tile.run = of_block.first_run + BlockX();
  const int seen = of_block.last_position + 1 - tile.run * kRunKeys;
  tile.keys = seen < kRunKeys ? seen : kRunKeys;
  tile.first = of_block.first;
  tile.rows = of_block.rows;
  tile.heads.kv_head = BlockY();
  tile.heads.kv_heads = shape.kv_heads;
  tile.heads.group = shape.heads / shape.kv_heads;
  tile.heads.rank_major = shape.rank_major;
  tile.heads.first = 0;
  tile.heads.count = HeadsOf(args, tile.first, tile.heads.kv_head);
  if (tile.heads.count == 0) return;
  tile.queries = tile.rows * tile.heads.count;
  const int padded = (args.tile_rows * tile.heads.group + 15) / 16 * 16;
  tile.query_byte = kTileSharedBytes + padded * kScoreFloats * 4;
  tile.bias_byte = tile.query_byte + padded * QueryWords(shape.head_dim) * 4;
  AttendTileRows<kSteps>(args, tile);
}

}  // namespace withy::engine::WITHY_GPU
