// Attention of tiles: rows that see the keys of one context, by the query heads of a KV head. A
// tile's queries are the rows of matrix products on the matrix units, so that a run of 256
// positions is read once for up to 64 queries. Bits are those of AttendKernel
// (attention-inl.cuh): sums over dimensions and keys are exact integers, and all that is rounded is
// computed by the same operations in the same order. Included by kernels-inl.cuh.
//
// A warp computes the scores of 32 keys for all queries, then the probabilities of every eighth
// query, then probabilities x V of 32 dimensions. K and V go from their blocks straight into
// fragments, 16 bytes a load. In mma's fragments lane 4g + t has of A the rows g and g + 8, of B
// column g, of C columns 2t and 2t + 1 of the rows g and g + 8; t also numbers the lane's share of
// the inner dimension. Which key or dimension a column is, and which four inner elements a word
// holds, is free as long as A and B agree:
//   scores: B is K. Column c of matrix i is key 4c + i of the warp's 32, so that a load of four
//   tokens feeds four matrices. Words of step s are the quads 8s + 2t and 8s + 2t + 1 of
//   dimensions, which all formats of K have side by side.
//   values: B is V. Column c of matrix i is dimension 4c + i of the warp's 32. Over 64 keys, lane t
//   has the four token quads of the t-th group of 16.
namespace withy::engine::WITHY_GPU {

inline constexpr int kTileWidths = 3;  // kV8, kV4, kV2
inline constexpr int kWarps = kThreads / 32;
// Floats of a query's scores. Probabilities take their place: the high halves of all keys, then the
// low halves, kOddBytes further in odd rows, so that neither scores nor probabilities meet in a
// bank. After them, sums of a part of the keys.
inline constexpr int kScoreFloats = 292;
inline constexpr int kOddBytes = 48;
inline constexpr int kSumsByte = 560;
inline constexpr int kBiasFloats = 2 * kMaxBiasPairs + 2;  // of a query

struct TileShared {
  RunBlocks blocks;
  RunValues values;
  int32_t first_group[kTileWidths];           // the first of this width; kRunGroups: none
  int32_t keys[kTileQueries];                 // of the run, that a row sees
  float to_units[kTileQueries][kTileWidths];  // by row
  float unit[kTileQueries][kTileWidths];
  float zeros[kTileQueries][kTileWidths];  // by query
  float query_scale[kTileQueries];
  int32_t query_sum[kTileQueries];
};

// Words of a query's bytes in shared memory: an odd multiple of eight, so that eight rows of a
// fragment lie in different banks.
constexpr int QueryWords(int head_dim) {
  return head_dim % 64 == 32 ? head_dim / 4 : head_dim / 4 + 8;
}
constexpr size_t TileSharedBytes(int head_dim, int queries, bool has_bias) {
  const int floats = QueryWords(head_dim) + (has_bias ? kBiasFloats : 0) + kScoreFloats;
  return (sizeof(TileShared) + 15) / 16 * 16 +
         static_cast<size_t>((queries + 15) / 16 * 16 * floats) * sizeof(float);
}

// Some rows of a tile and what they share.
struct Tile {
  int first;  // of the operation's rows
  int rows;
  int run;
  int keys;     // of the run, that the row that sees most sees
  int queries;  // rows * heads.count; query q is of row q / heads.count
  AttendHeads heads;
  TileShared* s;
  uint32_t* query;  // [queries, QueryWords]
  float* bias;      // [queries, kBiasFloats]
  float* scores;    // [queries, kScoreFloats]

  WITHY_DEVICE int Row(int q) const { return q / heads.count; }
  WITHY_DEVICE int Head(int q) const { return heads.Head(q % heads.count); }
  WITHY_DEVICE uint8_t* Probabilities(int q) const {
    return reinterpret_cast<uint8_t*>(scores + q * kScoreFloats) + q % 2 * kOddBytes;
  }
  WITHY_DEVICE uint8_t* Sums(int q) const {
    return reinterpret_cast<uint8_t*>(scores + q * kScoreFloats) + kSumsByte;
  }
  WITHY_DEVICE KvFormat Format(int group) const {
    return static_cast<KvFormat>(LoadShared(&s->blocks.format[group]));
  }
};

WITHY_DEVICE int PlannedRow(const AttendArgs& args, int row) {
  return args.wanted == nullptr ? row : LoadConst(args.wanted + row);
}

WITHY_DEVICE void LoadTileQueries(const AttendArgs& args, const Tile& tile) {
  const Shape& shape = args.shape;
  const int parts = shape.head_dim / 16;
  const int padded = (tile.queries + 15) / 16 * 16;
  for (int i = ThreadX(); i < padded * parts; i += kThreads) {
    const int q = i / parts;
    Words4 words = {};
    if (q < tile.queries) {
      const int64_t at =
          int64_t{PlannedRow(args, tile.first + tile.Row(q))} * shape.heads + tile.Head(q);
      words = LoadConst(reinterpret_cast<const Words4*>(args.queries.q + at * shape.head_dim) +
                        i % parts);
    }
    StoreShared(reinterpret_cast<Words4*>(tile.query + q * QueryWords(shape.head_dim)) + i % parts,
                words);
  }
  const int q = ThreadX();
  if (q < tile.rows) {
    const int seen = args.row[PlannedRow(args, tile.first + q)].position + 1 - tile.run * kRunKeys;
    StoreShared(&tile.s->keys[q], seen < kRunKeys ? seen : kRunKeys);
  }
  if (q < tile.queries) {
    const int64_t at =
        int64_t{PlannedRow(args, tile.first + tile.Row(q))} * shape.heads + tile.Head(q);
    StoreShared(&tile.s->query_scale[q], LoadConst(args.queries.scale + at));
    StoreShared(&tile.s->query_sum[q], LoadConst(args.queries.sum + at));
  }
}

// What the run's first position makes of the factors of the key bias.
WITHY_DEVICE void LoadTileBias(const AttendArgs& args, const Tile& tile) {
  const KeyBiasTables& bias = args.bias;
  const int kv_head = tile.heads.kv_head;
  const int pairs = LoadConst(bias.counts + kv_head);
  const float* of_run = bias.of_run + int64_t{tile.run} * bias.angles * 2;
  for (int i = ThreadX(); i < tile.queries * kMaxBiasPairs; i += kThreads) {
    const int q = i / kMaxBiasPairs;
    const int pair = i % kMaxBiasPairs;
    if (pair >= pairs) continue;
    const int64_t row = PlannedRow(args, tile.first + tile.Row(q));
    const int64_t at = ((row * args.shape.heads + tile.Head(q)) * kMaxBiasPairs + pair) * 2;
    const int angle = bias.pairs[kv_head * kMaxBiasPairs + pair].angle;
    const float c = LoadConst(of_run + angle * 2);
    const float n = LoadConst(of_run + angle * 2 + 1);
    const float cosine = LoadConst(args.queries.bias + at);
    const float sine = LoadConst(args.queries.bias + at + 1);
    StoreShared(tile.bias + q * kBiasFloats + pair * 2, cosine * c + sine * n);
    StoreShared(tile.bias + q * kBiasFloats + pair * 2 + 1, sine * c - cosine * n);
  }
}

// Fragments of the K of a warp's 32 keys: of a step of 32 dimensions the words of the quads 2t and
// 2t + 1 of key 4g + i, and the fields of their group's means.
template <int kSteps>
struct KeyFragments {
  uint32_t k[kSteps][2][4];
  uint32_t mean[kSteps];
};

template <int kSteps>
WITHY_DEVICE void LoadKeys(const AttendArgs& args, const Tile& tile, KeyFragments<kSteps>* to) {
  const int lane = ThreadX() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int group = ThreadX() / 32 * 2 + g / 4;
  *to = {};
  if (group * kChunkTokens >= tile.keys) return;
  const KvFormat format = tile.Format(group);
  const KvPlaces& at = args.places[static_cast<int>(format)];
  const uint8_t* block = LoadShared(&tile.s->blocks.block[group]);
  const auto* k = reinterpret_cast<const Words4*>(block + at.k) + g % 4;
  const int steps = args.shape.head_dim / 32;
  const int bits = KBitsOf(format);
  if (bits == 8) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= steps) break;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const Words4 words = Load(k + (step * 8 + t * 2 + n) * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) to->k[step][n][i] = words.w[i] ^ 0x80808080u;
      }
    }
    return;
  }
  const uint32_t mask = bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
  const int shift = bits == 4 ? 0 : t % 2 * 4;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step >= steps) break;
    const Words4 words = Load(k + (bits == 4 ? step * 4 + t : step * 2 + t / 2) * 4);
    to->mean[step] = Load(reinterpret_cast<const uint32_t*>(block + at.k_mean) + step * 4 + t);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to->k[step][0][i] = (words.w[i] >> shift) & mask;
      to->k[step][1][i] = (words.w[i] >> (shift + bits)) & mask;
    }
  }
}

// Scales and zeros of K of the keys whose scores a lane has: 8t .. 8t + 7 of the warp's 32.
struct KeyScales {
  bool whole;  // 8 bits
  float scale[8];
  int32_t zero[8];
  float mean_unit;
};

WITHY_DEVICE void LoadKeyScales(const AttendArgs& args, const Tile& tile, KeyScales* to) {
  const int t = ThreadX() % 4;
  const int group = ThreadX() / 32 * 2 + t / 2;
  const int token = t % 2 * 8;
  *to = {};
  if (group * kChunkTokens >= tile.keys) return;
  const KvFormat format = tile.Format(group);
  const KvPlaces& at = args.places[static_cast<int>(format)];
  const uint8_t* block = LoadShared(&tile.s->blocks.block[group]);
  const int bits = KBitsOf(format);
  to->whole = bits == 8;
  if (bits == 8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 scales =
          Load(reinterpret_cast<const Words4*>(block + at.k_scale + token * 4) + half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to->scale[half * 4 + i] = BitsFloat(static_cast<int32_t>(scales.w[i]));
      }
    }
    return;
  }
  const auto* units = reinterpret_cast<const float*>(block + at.units);
  const float unit = Load(units);
  to->mean_unit = Load(units + 2);
  const Words2 scales = Load(reinterpret_cast<const Words2*>(block + at.k_scale + token));
  const Words2 zeros = Load(reinterpret_cast<const Words2*>(block + at.zero + token));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int shift = i % 4 * 8;
    to->scale[i] = static_cast<float>(scales.w[i / 4] >> shift & 255) * unit;
    to->zero[i] = ZeroUnits(bits, static_cast<int>(zeros.w[i / 4] >> shift & 15));
  }
}

// Scores of a query for a lane's eight keys, of the sums of products with keys and means.
WITHY_DEVICE void ScaleScores(const Tile& tile, int q, const KeyScales& keys, int32_t mean,
                              const int32_t (&dot)[8], float (&score)[8]) {
  const float q_scale = LoadShared(&tile.s->query_scale[q]);
  if (keys.whole) {
#pragma unroll
    for (int i = 0; i < 8; ++i) score[i] = static_cast<float>(dot[i]) * keys.scale[i] * q_scale;
    return;
  }
  const int32_t sum = LoadShared(&tile.s->query_sum[q]);
  const float of_mean = static_cast<float>(mean - kKvMeanZero * sum) * keys.mean_unit * q_scale;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float fields =
        static_cast<float>(dot[i] * kKvZeroUnits - keys.zero[i] * sum) * keys.scale[i];
    score[i] = Fma(fields, q_scale * (1.0f / kKvZeroUnits), of_mean);
  }
}

WITHY_DEVICE void AddTileBias(const AttendArgs& args, const Tile& tile, int q, int key,
                              float (&score)[8]) {
  const int kv_head = tile.heads.kv_head;
  const int pairs = LoadConst(args.bias.counts + kv_head);
  for (int pair = 0; pair < pairs; ++pair) {
    const int angle = args.bias.pairs[kv_head * kMaxBiasPairs + pair].angle;
    const float* in_run = args.bias.in_run + int64_t{angle} * 2 * kRunKeys + key;
    const float cosine = LoadShared(tile.bias + q * kBiasFloats + pair * 2);
    const float sine = LoadShared(tile.bias + q * kBiasFloats + pair * 2 + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 c = LoadConst(reinterpret_cast<const Words4*>(in_run) + half);
      const Words4 n = LoadConst(reinterpret_cast<const Words4*>(in_run + kRunKeys) + half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* v = &score[half * 4 + i];
        *v = Fma(BitsFloat(static_cast<int32_t>(c.w[i])), cosine, *v);
        *v = Fma(BitsFloat(static_cast<int32_t>(n.w[i])), sine, *v);
      }
    }
  }
}

WITHY_DEVICE void StoreEight(float* to, const float (&v)[8], bool shared) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Words4 words;
#pragma unroll
    for (int i = 0; i < 4; ++i) words.w[i] = static_cast<uint32_t>(FloatBits(v[half * 4 + i]));
    auto* at = reinterpret_cast<Words4*>(to) + half;
    if (shared) {
      StoreShared(at, words);
    } else {
      Store(at, words);
    }
  }
}

// Scores of a warp's keys, for all queries.
template <int kSteps>
WITHY_DEVICE void TileScores(const AttendArgs& args, const Tile& tile,
                             const KeyFragments<kSteps>& keys) {
  const int warp = ThreadX() / 32;
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
  if (warp * 32 >= tile.keys) return;
  bool lower = false;  // than 8 bits, in one of the warp's groups
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const KvFormat format = tile.Format(warp * 2 + n);
    lower = lower || (format != KvFormat::kEmpty && KBitsOf(format) != 8);
  }
  KeyScales scales;
  LoadKeyScales(args, tile, &scales);
  const int steps = args.shape.head_dim / 32;
  const int words = QueryWords(args.shape.head_dim);
  for (int m = 0; m < tile.queries; m += 16) {
    int32_t dot[4][4] = {};
    int32_t mean[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= steps) break;
      const auto* query = reinterpret_cast<const Words2*>(tile.query + (m + g) * words) + t;
      const Words2 of_g = LoadShared(query + step * 4);
      const Words2 of_g8 = LoadShared(query + step * 4 + words * 4);
      const uint32_t a[4] = {of_g.w[0], of_g8.w[0], of_g.w[1], of_g8.w[1]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t b[2] = {keys.k[step][0][i], keys.k[step][1][i]};
        MmaS8(dot[i], a, b);
      }
      if (lower) {
        const uint32_t b[2] = {keys.mean[step] & 0x0f0f0f0fu, keys.mean[step] >> 4 & 0x0f0f0f0fu};
        MmaS8(mean, a, b);
      }
    }
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int q = m + g + 8 * high;
      if (q >= tile.queries) break;
      int32_t of_key[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) of_key[i] = dot[i % 4][2 * high + i / 4];
      float score[8];
      ScaleScores(tile, q, scales, mean[2 * high], of_key, score);
      const int key = warp * 32 + t * 8;
      if (args.bias.pairs != nullptr) AddTileBias(args, tile, q, key, score);
      StoreEight(tile.scores + q * kScoreFloats + key, score, true);
    }
  }
}

WITHY_DEVICE void FindFirstGroups(const Tile& tile) {
  const int width = ThreadX();
  if (width >= kTileWidths) return;
  int32_t first = 0;
  while (first < kRunGroups &&
         (first * kChunkTokens >= tile.keys || WidthOf(tile.Format(first)) != width)) {
    ++first;
  }
  StoreShared(&tile.s->first_group[width], first);
}

// The largest V scale of each width among the keys that a row sees; a warp for each row.
WITHY_DEVICE void FindTileUnits(const Tile& tile) {
  TileShared* const s = tile.s;
  const int lane = ThreadX() % 32;
  for (int row = ThreadX() / 32; row < tile.rows; row += kWarps) {
    const int keys = LoadShared(&s->keys[row]);
    for (int width = 0; width < kTileWidths; ++width) {
      const int first = LoadShared(&s->first_group[width]) * kChunkTokens;
      if (first >= keys) continue;
      float most = 0.0f;
      for (int key = lane; key < keys; key += 32) {
        if (WidthOf(tile.Format(key / kChunkTokens)) != width) continue;
        most = Max(most, LoadShared(&s->values.scale[key]));
      }
      most = WarpMax(most);
      if (lane == 0) {
        StoreShared(&s->to_units[row][width], most > 1e-30f ? Divide(16383.0f, most) : 0.0f);
        StoreShared(&s->unit[row][width], most * (1.0f / 16383.0f));
      }
    }
  }
}

// A warp turns scores of its queries into probabilities. Writes maxima, sums and densities.
template <typename PartOf>
WITHY_DEVICE void TileSoftmax(const AttendArgs& args, const Tile& tile, PartOf part_of) {
  constexpr int kKeys = kRunKeys / 32;  // of a lane
  TileShared* const s = tile.s;
  const int lane = ThreadX() % 32;
  float v_scale[kKeys];
  VWidth width[kKeys];
#pragma unroll
  for (int step = 0; step < kKeys; ++step) {
    const int key = step * 32 + lane;
    v_scale[step] = LoadShared(&s->values.scale[key]);
    width[step] = WidthOf(tile.Format(key / kChunkTokens));
  }
  const bool lower = LoadShared(&s->first_group[kV8]) != 0 ||
                     LoadShared(&s->first_group[kV4]) < kRunGroups ||
                     LoadShared(&s->first_group[kV2]) < kRunGroups;
  for (int q = ThreadX() / 32; q < tile.queries; q += kWarps) {
    const int row = tile.Row(q);
    const int keys = LoadShared(&s->keys[row]);
    if (keys <= 0) continue;
    const float* scores = tile.scores + q * kScoreFloats;
    float v[kKeys];
    float max = -3.0e38f;
#pragma unroll
    for (int step = 0; step < kKeys; ++step) {
      const int key = step * 32 + lane;
      if (key < keys) {
        v[step] = LoadShared(scores + key);
        max = Max(max, v[step]);
      } else {
        v[step] = -3.0e38f;
      }
    }
    max = WarpMax(max);
    SyncWarp();  // probabilities take the place of the scores
    float to_units[kTileWidths];
#pragma unroll
    for (int w = 0; w < kTileWidths; ++w) to_units[w] = LoadShared(&s->to_units[row][w]);
    uint8_t* const high = tile.Probabilities(q) + lane;
    float* const part = part_of(q);
    float sum = 0.0f;
    int32_t zeros[kTileWidths] = {};
#pragma unroll
    for (int step = 0; step < kKeys; ++step) {
      const int key = step * 32 + lane;
      float p = 0.0f;
      int32_t units = 0;
      if (key < keys) {
        p = Exp(v[step] - max);
        float factor = to_units[kV8];
        if (lower) {
          factor = width[step] == kV8 ? factor : width[step] == kV4 ? to_units[kV4] : to_units[kV2];
        }
        units = RoundToInt(p * (v_scale[step] * factor));
        if (lower) {
          const int32_t zero = units * LoadShared(&s->values.zero[key]);
          if (width[step] == kV4) zeros[kV4] += zero;
          if (width[step] == kV2) zeros[kV2] += zero;
        }
      }
      sum += p;
      StoreShared(high + step * 32, static_cast<uint8_t>(units >> 7));
      StoreShared(high + kRunKeys + step * 32, static_cast<uint8_t>(units & 127));
      if (args.densities) {
        float density = p;
#pragma unroll
        for (int d = 8; d > 0; d /= 2) density += ShuffleXor(density, d);
        if (lane % 16 == 0) Store(part + args.shape.head_dim + 2 + key / kChunkTokens, density);
      }
    }
    sum = WarpSum(sum);
    if (lower) {
      zeros[kV4] = WarpSum(zeros[kV4]);
      zeros[kV2] = WarpSum(zeros[kV2]);
    }
    if (lane != 0) continue;
    Store(part + args.shape.head_dim, max);
    Store(part + args.shape.head_dim + 1, sum);
#pragma unroll
    for (int w = 0; w < kTileWidths; ++w) {
      StoreShared(&s->zeros[q][w], static_cast<float>(zeros[w]) * (1.0f / kKvZeroUnits));
    }
  }
}

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

  WITHY_DEVICE explicit ValueShare(int head_dim) {
    const int blocks = head_dim / 32;
    const int warp = ThreadX() / 32;
    stride = kWarps / (blocks * kParts);
    block = warp % blocks;
    part = warp / blocks % kParts;
    first = warp / (blocks * kParts);
    works = first < stride;
  }
};

// Fragments of V: of 64 keys the quads of the t-th group, of dimension 4g + i of the warp's 32.
template <int kPairs>
struct ValueFragments {
  uint32_t v[kPairs][4][4];
  VWidth width[kPairs];
};

template <int kSteps>
WITHY_DEVICE void LoadValues(const AttendArgs& args, const Tile& tile,
                             const ValueShare<kSteps>& share,
                             ValueFragments<ValueShare<kSteps>::kPairs>* to) {
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
  const int d = share.block * 32 + g * 4;
  *to = {};
  if (!share.works) return;
#pragma unroll
  for (int pair = 0; pair < ValueShare<kSteps>::kPairs; ++pair) {
    const int group = (share.part * ValueShare<kSteps>::kPairs + pair) * 4 + t;
    if (group * kChunkTokens >= tile.keys) break;
    const KvFormat format = tile.Format(group);
    const uint8_t* v =
        LoadShared(&tile.s->blocks.block[group]) + args.places[static_cast<int>(format)].v;
    const VWidth width = WidthOf(format);
    to->width[pair] = width;
    if (width == kV8) {
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        const Words4 words =
            Load(reinterpret_cast<const Words4*>(v + (quad * args.shape.head_dim + d) * 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) to->v[pair][quad][i] = words.w[i];
      }
    } else if (width == kV4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Words4 words =
            Load(reinterpret_cast<const Words4*>(v + d / 16 * 128 + half * 64 + d % 16 * 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to->v[pair][half * 2][i] = words.w[i] & 0x0f0f0f0fu;
          to->v[pair][half * 2 + 1][i] = words.w[i] >> 4 & 0x0f0f0f0fu;
        }
      }
    } else {
      const Words4 words = Load(reinterpret_cast<const Words4*>(v + d / 16 * 64 + d % 16 * 4));
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to->v[pair][quad][i] = words.w[i] >> (2 * quad) & 0x03030303u;
        }
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
    const int row = tile.Row(q);
    if (LoadShared(&tile.s->first_group[width]) * kChunkTokens >= LoadShared(&tile.s->keys[row])) {
      continue;
    }
    const float zeros = LoadShared(&tile.s->zeros[q][width]);
    const float unit = LoadShared(&tile.s->unit[row][width]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float value = static_cast<float>(SumOf(sums, high, i)) - zeros;
      out[high][i] = Fma(value, unit, out[high][i]);
    }
  }
}

template <int kSteps, bool kMixed, typename PartOf>
WITHY_DEVICE void TileValues(const Tile& tile, const ValueShare<kSteps>& share,
                             const ValueFragments<ValueShare<kSteps>::kPairs>& values,
                             PartOf part_of) {
  const int g = ThreadX() % 32 / 4;
  const int t = ThreadX() % 4;
  // All warps take as many turns, for the barriers.
  const int sixteens = (tile.queries + 15) / 16;
  const int turns = (sixteens + share.stride - 1) / share.stride;
  for (int turn = 0; turn < turns; ++turn) {
    const int m = (turn * share.stride + share.first) * 16;
    const bool works = share.works && m < tile.queries;
    float out[2][8] = {};
    for (int width = 0; width < kTileWidths; ++width) {
      if (LoadShared(&tile.s->first_group[width]) == kRunGroups) continue;
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
      if (q >= tile.queries || LoadShared(&tile.s->keys[tile.Row(q)]) <= 0) continue;
      StoreEight(part_of(q) + share.block * 32 + t * 8, out[high], false);
    }
  }
}

// Attention of a tile's rows to the run, of rows that read the same blocks.
template <int kSteps>
WITHY_DEVICE void AttendTileRows(const AttendArgs& args, const Tile& tile) {
  const Shape& shape = args.shape;
  TileShared* const s = tile.s;
  const auto part_of = [&](int q) {
    const int64_t at = tile.first + tile.Row(q) - args.first_row;
    return args.parts + ((at * shape.heads + tile.Head(q)) * args.runs + tile.run) *
                            (shape.head_dim + kPartExtra);
  };
  FindBlocks(args, args.row[PlannedRow(args, tile.first)], tile.run, tile.keys, tile.heads.kv_head,
             &s->blocks);
  LoadTileQueries(args, tile);
  if (args.bias.pairs != nullptr) LoadTileBias(args, tile);
  SyncBlock();
  {
    KeyFragments<kSteps> keys;
    LoadKeys<kSteps>(args, tile, &keys);
    FindValueScale(args, ThreadX(), tile.keys, s->blocks, &s->values);
    FindFirstGroups(tile);
    TileScores<kSteps>(args, tile, keys);
  }
  const ValueShare<kSteps> share(shape.head_dim);
  ValueFragments<ValueShare<kSteps>::kPairs> values;
  LoadValues<kSteps>(args, tile, share, &values);  // they arrive during what follows
  SyncBlock();
  FindTileUnits(tile);
  SyncBlock();
  TileSoftmax(args, tile, part_of);
  SyncBlock();
  int widths = 0;
#pragma unroll
  for (int width = 0; width < kTileWidths; ++width) {
    widths += LoadShared(&s->first_group[width]) < kRunGroups ? 1 : 0;
  }
  if (widths == 1) {
    TileValues<kSteps, false>(tile, share, values, part_of);
  } else {
    TileValues<kSteps, true>(tile, share, values, part_of);
  }
}

// Grid [runs, KV heads, tiles]; kSteps * 32 is at least head_dim.
template <int kSteps>
WITHY_GLOBAL void WITHY_THREADS(kThreads) AttendTilesKernel(AttendArgs args) {
  LetNextStart();
  WaitForPrior();
  const Shape& shape = args.shape;
  const AttendTile& of_block = args.tiles[BlockZ()];
  if (of_block.rows == 0) return;
  Tile tile;
  tile.run = BlockX();
  tile.heads.kv_head = BlockY();
  tile.heads.kv_heads = shape.kv_heads;
  tile.heads.group = shape.heads / shape.kv_heads;
  tile.heads.rank_major = shape.rank_major;
  tile.heads.first = 0;
  tile.heads.count = HeadsOf(args, of_block.first, tile.heads.kv_head);
  if (of_block.last_position < tile.run * kRunKeys || tile.heads.count == 0) return;
  const int padded = (args.tile_rows * tile.heads.group + 15) / 16 * 16;
  tile.s = reinterpret_cast<TileShared*>(SharedMemory());
  tile.query = reinterpret_cast<uint32_t*>(SharedMemory() + (sizeof(TileShared) + 15) / 16 * 16);
  tile.bias = reinterpret_cast<float*>(tile.query + padded * QueryWords(shape.head_dim));
  tile.scores = tile.bias + (args.bias.pairs != nullptr ? padded * kBiasFloats : 0);
  // Rows of a token tree read blocks of their own where their tails are.
  const bool shares = of_block.tail_group >= (tile.run + 1) * kRunGroups;
  tile.rows = shares ? of_block.rows : 1;
  tile.queries = tile.rows * tile.heads.count;
  for (int first = 0; first < of_block.rows; first += tile.rows) {
    tile.first = of_block.first + first;
    const int last =
        shares ? of_block.last_position : args.row[PlannedRow(args, tile.first)].position;
    const int seen = last + 1 - tile.run * kRunKeys;
    if (seen <= 0) continue;
    tile.keys = seen < kRunKeys ? seen : kRunKeys;
    AttendTileRows<kSteps>(args, tile);
    SyncBlock();  // the next row's data take the same place
  }
}

}  // namespace withy::engine::WITHY_GPU
