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
  uint32_t groups[kTileWidths];  // whose V has this width, a bit each
  // By query.
  float* part[kTileQueries];
  int32_t row[kTileQueries];   // of the tile
  int32_t keys[kTileQueries];  // of the run, that it sees
  float query_scale[kTileQueries];
  int32_t query_sum[kTileQueries];
  float zeros[kTileQueries][kTileWidths];
  // By row.
  float to_units[kTileQueries][kTileWidths];
  float unit[kTileQueries][kTileWidths];
};

inline constexpr int kTileSharedBytes = (sizeof(TileShared) + 15) / 16 * 16;

// Words of a query's bytes in shared memory: an odd multiple of eight, so that eight rows of a
// fragment lie in different banks.
constexpr int QueryWords(int head_dim) {
  return head_dim % 64 == 32 ? head_dim / 4 : head_dim / 4 + 8;
}
constexpr size_t TileSharedBytes(int head_dim, int queries, bool has_bias) {
  const int floats = QueryWords(head_dim) + (has_bias ? kBiasFloats : 0) + kScoreFloats;
  return kTileSharedBytes + static_cast<size_t>((queries + 15) / 16 * 16 * floats) * sizeof(float);
}

// What a thread block computes.
struct Tile {
  int first;  // of the operation's rows
  int rows;
  int run;
  int keys;     // of the run, that the row that sees most sees
  int queries;  // rows * heads.count; query q is of row q / heads.count
  AttendHeads heads;
  // In shared memory after TileShared and the scores.
  int query_byte;
  int bias_byte;

  WITHY_DEVICE TileShared* shared() const { return reinterpret_cast<TileShared*>(SharedMemory()); }
  // [queries, QueryWords]
  WITHY_DEVICE uint32_t* query() const {
    return reinterpret_cast<uint32_t*>(SharedMemory() + query_byte);
  }
  WITHY_DEVICE float* Bias(int q) const {
    return reinterpret_cast<float*>(SharedMemory() + bias_byte) + q * kBiasFloats;
  }
  WITHY_DEVICE float* Scores(int q) const {
    return reinterpret_cast<float*>(SharedMemory() + kTileSharedBytes) + q * kScoreFloats;
  }
  WITHY_DEVICE int Row(int q) const { return q / heads.count; }
  WITHY_DEVICE int Head(int q) const { return heads.Head(q % heads.count); }
  WITHY_DEVICE uint8_t* Probabilities(int q) const {
    return reinterpret_cast<uint8_t*>(Scores(q)) + q % 2 * kOddBytes;
  }
  WITHY_DEVICE uint8_t* Sums(int q) const {
    return reinterpret_cast<uint8_t*>(Scores(q)) + kSumsByte;
  }
  WITHY_DEVICE KvFormat Format(int group) const {
    return static_cast<KvFormat>(LoadShared(&shared()->blocks.format[group]));
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
    StoreShared(
        reinterpret_cast<Words4*>(tile.query() + q * QueryWords(shape.head_dim)) + i % parts,
        words);
  }
  const int q = ThreadX();
  if (q >= tile.queries) return;
  TileShared* const s = tile.shared();
  const int row = tile.Row(q);
  const int head = tile.Head(q);
  const int planned = PlannedRow(args, tile.first + row);
  const int seen = args.row[planned].position + 1 - tile.run * kRunKeys;
  StoreShared(&s->row[q], row);
  StoreShared(&s->keys[q], seen < kRunKeys ? seen : kRunKeys);
  const int64_t part =
      (int64_t{tile.first + row - args.first_row} * shape.heads + head) * args.runs + tile.run;
  StoreShared(&s->part[q], args.parts + part * (shape.head_dim + kPartExtra));
  const int64_t at = int64_t{planned} * shape.heads + head;
  StoreShared(&s->query_scale[q], LoadConst(args.queries.scale + at));
  StoreShared(&s->query_sum[q], LoadConst(args.queries.sum + at));
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
    StoreShared(tile.Bias(q) + pair * 2, cosine * c + sine * n);
    StoreShared(tile.Bias(q) + pair * 2 + 1, sine * c - cosine * n);
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
  const KvPlaces at = LoadShared(&tile.shared()->blocks.places[group]);
  const uint8_t* block = LoadShared(&tile.shared()->blocks.block[group]);
  const auto* k = reinterpret_cast<const Words4*>(block + at.k) + g % 4;
  const int steps = args.shape.head_dim / 32;
  // No load waits for another: words are taken apart when all are on their way.
  const int bits = KBitsOf(format);
  if (bits == 8) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Words4 words = {};
        if (step < steps) words = LoadConst(k + (step * 8 + t * 2 + n) * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) to->k[step][n][i] = words.w[i];
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 8; ++i) to->k[step][i / 4][i % 4] ^= 0x80808080u;
    }
    return;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    Words4 words = {};
    if (step < steps) {
      words = LoadConst(k + (bits == 4 ? step * 4 + t : step * 2 + t / 2) * 4);
      to->mean[step] =
          LoadConst(reinterpret_cast<const uint32_t*>(block + at.k_mean) + step * 4 + t);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) to->k[step][0][i] = words.w[i];
  }
  const uint32_t mask = bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
  const int shift = bits == 4 ? 0 : t % 2 * 4;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = to->k[step][0][i];
      to->k[step][0][i] = (word >> shift) & mask;
      to->k[step][1][i] = (word >> (shift + bits)) & mask;
    }
  }
}

// Scales and zeros of K of the keys whose scores a lane has: 8t .. 8t + 7 of the warp's 32.
struct KeyScales {
  int bits;
  float scale[8];
  Words2 zeros;  // a byte each
  float mean_unit;
};

WITHY_DEVICE void LoadKeyScales(const AttendArgs& args, const Tile& tile, KeyScales* to) {
  const int t = ThreadX() % 4;
  const int group = ThreadX() / 32 * 2 + t / 2;
  const int token = t % 2 * 8;
  *to = {};
  if (group * kChunkTokens >= tile.keys) return;
  const KvFormat format = tile.Format(group);
  const KvPlaces at = LoadShared(&tile.shared()->blocks.places[group]);
  const uint8_t* block = LoadShared(&tile.shared()->blocks.block[group]);
  const int bits = KBitsOf(format);
  to->bits = bits;
  if (bits == 8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 scales =
          LoadConst(reinterpret_cast<const Words4*>(block + at.k_scale + token * 4) + half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to->scale[half * 4 + i] = BitsFloat(static_cast<int32_t>(scales.w[i]));
      }
    }
    return;
  }
  const auto* units = reinterpret_cast<const float*>(block + at.units);
  const float unit = LoadConst(units);
  to->mean_unit = LoadConst(units + 2);
  const Words2 scales = LoadConst(reinterpret_cast<const Words2*>(block + at.k_scale + token));
  to->zeros = LoadConst(reinterpret_cast<const Words2*>(block + at.zero + token));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    to->scale[i] = static_cast<float>(scales.w[i / 4] >> (i % 4 * 8) & 255) * unit;
  }
}

// Scores of a query for a lane's eight keys, of the sums of products with keys and means.
WITHY_DEVICE void ScaleScores(const Tile& tile, int q, const KeyScales& keys, int32_t mean,
                              const int32_t (&dot)[8], float (&score)[8]) {
  const float q_scale = LoadShared(&tile.shared()->query_scale[q]);
  if (keys.bits == 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) score[i] = static_cast<float>(dot[i]) * keys.scale[i] * q_scale;
    return;
  }
  const int32_t sum = LoadShared(&tile.shared()->query_sum[q]);
  const float of_mean = static_cast<float>(mean - kKvMeanZero * sum) * keys.mean_unit * q_scale;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int zero =
        ZeroUnits(keys.bits, static_cast<int>(keys.zeros.w[i / 4] >> (i % 4 * 8) & 15));
    const float fields = static_cast<float>(dot[i] * kKvZeroUnits - zero * sum) * keys.scale[i];
    score[i] = Fma(fields, q_scale * (1.0f / kKvZeroUnits), of_mean);
  }
}

WITHY_DEVICE void AddTileBias(const AttendArgs& args, const Tile& tile, int q, int key,
                              float (&score)[8]) {
  const int kv_head = tile.heads.kv_head;
  const int pairs = LoadConst(args.bias.counts + kv_head);
#pragma unroll 1
  for (int pair = 0; pair < pairs; ++pair) {
    const int angle = args.bias.pairs[kv_head * kMaxBiasPairs + pair].angle;
    const float* in_run = args.bias.in_run + int64_t{angle} * 2 * kRunKeys + key;
    const float cosine = LoadShared(tile.Bias(q) + pair * 2);
    const float sine = LoadShared(tile.Bias(q) + pair * 2 + 1);
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
WITHY_DEVICE void TileScores(const AttendArgs& args, const Tile& tile, const KeyScales& scales,
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
  const int steps = args.shape.head_dim / 32;
  const int words = QueryWords(args.shape.head_dim);
#pragma unroll 1
  for (int m = 0; m < tile.queries; m += 16) {
    int32_t dot[4][4] = {};
    int32_t mean[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= steps) break;
      const auto* query = reinterpret_cast<const Words2*>(tile.query() + (m + g) * words) + t;
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
      StoreEight(tile.Scores(q) + key, score, true);
    }
  }
}

// Groups that a row sees which sees `keys` keys of the run, a bit each.
WITHY_DEVICE uint32_t SeenGroups(int keys) {
  return keys <= 0 ? 0 : (2u << ((keys - 1) / kChunkTokens)) - 1;
}

// Which groups have V of a width; by one warp.
WITHY_DEVICE void FindGroups(const Tile& tile) {
  if (ThreadX() >= 32) return;
  const int group = ThreadX() % kRunGroups;
  const VWidth of_group = WidthOf(tile.Format(group));
  const uint32_t seen = SeenGroups(tile.keys);
#pragma unroll
  for (int width = 0; width < kTileWidths; ++width) {
    const uint32_t groups = Ballot(of_group == width) & seen;
    if (ThreadX() == 0) StoreShared(&tile.shared()->groups[width], groups);
  }
}

// The largest V scale of each width among the keys that a row sees; a warp for each row.
WITHY_DEVICE void FindTileUnits(const Tile& tile) {
  TileShared* const s = tile.shared();
  const int lane = ThreadX() % 32;
#pragma unroll 1
  for (int row = ThreadX() / 32; row < tile.rows; row += kWarps) {
    const int keys = LoadShared(&s->keys[row * tile.heads.count]);
#pragma unroll 1
    for (int width = 0; width < kTileWidths; ++width) {
      const uint32_t groups = LoadShared(&s->groups[width]);
      if ((groups & SeenGroups(keys)) == 0) continue;
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < kRunKeys / 32; ++i) {
        const int key = i * 32 + lane;
        const float scale = LoadShared(&s->values.scale[key]);
        const bool counts = key < keys && (groups >> (key / kChunkTokens) & 1) != 0;
        most = counts ? Max(most, scale) : most;
      }
      most = WarpMax(most);
      if (lane == 0) {
        StoreShared(&s->to_units[row][width], most > 1e-30f ? Divide(16383.0f, most) : 0.0f);
        StoreShared(&s->unit[row][width], most * (1.0f / 16383.0f));
      }
    }
  }
}

inline constexpr int kLaneKeys = kRunKeys / 32;  // key 32 i + lane is a lane's i-th

// Rounds probabilities times V scales and writes them in the place of the scores. Adds up the zeros
// of V, by width.
template <bool kLower>
WITHY_DEVICE void RoundProbabilities(const Tile& tile, int q, const float (&p)[kLaneKeys],
                                     const float (&v_scale)[kLaneKeys], uint32_t widths) {
  TileShared* const s = tile.shared();
  const int lane = ThreadX() % 32;
  const int row = LoadShared(&s->row[q]);
  const int keys = LoadShared(&s->keys[q]);
  const float of_8 = LoadShared(&s->to_units[row][kV8]);
  const float of_4 = kLower ? LoadShared(&s->to_units[row][kV4]) : 0.0f;
  const float of_2 = kLower ? LoadShared(&s->to_units[row][kV2]) : 0.0f;
  uint8_t* const high = tile.Probabilities(q) + lane;
  int32_t zeros[kTileWidths] = {};
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    const int key = i * 32 + lane;
    const uint32_t width = widths >> (2 * i) & 3;
    float to_units = of_8;
    if (kLower) to_units = width == kV8 ? of_8 : width == kV4 ? of_4 : of_2;
    const int32_t rounded = RoundToInt(p[i] * (v_scale[i] * to_units));
    const int32_t units = key < keys ? rounded : 0;
    if (kLower) {
      const int32_t zero = units * LoadShared(&s->values.zero[key]);
      zeros[kV4] += width == kV4 ? zero : 0;
      zeros[kV2] += width == kV2 ? zero : 0;
    }
    StoreShared(high + i * 32, static_cast<uint8_t>(units >> 7));
    StoreShared(high + kRunKeys + i * 32, static_cast<uint8_t>(units & 127));
  }
  if (kLower) {
    zeros[kV4] = WarpSum(zeros[kV4]);
    zeros[kV2] = WarpSum(zeros[kV2]);
  }
  if (lane != 0) return;
#pragma unroll
  for (int w = 0; w < kTileWidths; ++w) {
    StoreShared(&s->zeros[q][w], static_cast<float>(zeros[w]) * (1.0f / kKvZeroUnits));
  }
}

// A warp turns scores of its queries into probabilities. Writes maxima, sums and densities. kLower:
// some V has fewer than 8 bits.
template <bool kLower>
WITHY_DEVICE void TileSoftmax(const AttendArgs& args, const Tile& tile) {
  TileShared* const s = tile.shared();
  const int lane = ThreadX() % 32;
  float v_scale[kLaneKeys];
  uint32_t widths = 0;  // two bits a key
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    const int key = i * 32 + lane;
    v_scale[i] = LoadShared(&s->values.scale[key]);
    if (kLower) {
      widths |= static_cast<uint32_t>(WidthOf(tile.Format(key / kChunkTokens))) << (2 * i);
    }
  }
#pragma unroll 1
  for (int q = ThreadX() / 32; q < tile.queries; q += kWarps) {
    const int keys = LoadShared(&s->keys[q]);
    if (keys <= 0) continue;
    const float* scores = tile.Scores(q) + lane;
    float p[kLaneKeys];
    float max = -3.0e38f;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const float score = LoadShared(scores + i * 32);
      p[i] = i * 32 + lane < keys ? score : -3.0e38f;
      max = Max(max, p[i]);
    }
    max = WarpMax(max);
    SyncWarp();  // probabilities take the place of the scores
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const float e = Exp(p[i] - max);
      p[i] = i * 32 + lane < keys ? e : 0.0f;
      sum += p[i];
    }
    RoundProbabilities<kLower>(tile, q, p, v_scale, widths);
    float* const part = LoadShared(&s->part[q]) + args.shape.head_dim;
    if (args.densities) {
#pragma unroll
      for (int i = 0; i < kLaneKeys; ++i) {
        float density = p[i];
#pragma unroll
        for (int d = 8; d > 0; d /= 2) density += ShuffleXor(density, d);
        if (lane % 16 == 0) Store(part + 2 + i * 2 + lane / 16, density);
      }
    }
    sum = WarpSum(sum);
    if (lane == 0) {
      Store(part, max);
      Store(part + 1, sum);
    }
  }
}

}  // namespace withy::engine::WITHY_GPU
