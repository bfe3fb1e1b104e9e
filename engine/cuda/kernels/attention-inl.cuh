// Attention, one row at a time, of blocks in any format: attention_tile-inl.cuh takes the rows that
// it can. A thread block takes one run of 256 positions for one row and KV head: a thread has one
// key for the scores, then one dimension for the values. Included by kernels-inl.cuh.
//
// As on the CPU (cpu/attention-inl.h): each run has its own maximum; probabilities times V scales
// become 14-bit numbers relative to the largest V scale that the run has at this width of V, stored
// as two 7-bit halves. So sums over keys are exact integers in any order.
namespace withy::engine::WITHY_GPU {

enum VWidth : int { kV8, kV4, kV2, kVHalf, kVWidths };

WITHY_DEVICE int KBitsOf(KvFormat format) {
  switch (format) {
    case KvFormat::kQ8:
      return 8;
    case KvFormat::kQ2:
      return 2;
    case KvFormat::kF16:
      return 16;
    default:
      return 4;
  }
}
WITHY_DEVICE VWidth WidthOf(KvFormat format) {
  switch (format) {
    case KvFormat::kQ8:
      return kV8;
    case KvFormat::kQ4:
      return kV4;
    case KvFormat::kF16:
      return kVHalf;
    default:
      return kV2;
  }
}
WITHY_DEVICE int ZeroUnits(int bits, int z) { return ((1 << bits) - 1) * kKvZeroUnits / 2 + z - 8; }

// The blocks of a run, of one KV head.
struct RunBlocks {
  const uint8_t* block[kRunGroups];
  int32_t format[kRunGroups];  // kEmpty: not visible
  KvPlaces places[kRunGroups];
};
// Scales and zeros of V of a run's keys.
struct RunValues {
  float scale[kRunKeys];
  int32_t zero[kRunKeys];
};

// Shared memory of a thread block.
struct AttendShared {
  RunBlocks blocks;
  RunValues values;
  float widest[kVWidths];  // largest V scale
  int32_t has[kVWidths];   // some group has the width
  float unit[kHeadsAtOnce][kVWidths];
  float zeros[kHeadsAtOnce][kVWidths];
  float query_scale[kHeadsAtOnce];
  int32_t query_sum[kHeadsAtOnce];
  float bias[kHeadsAtOnce][kMaxBiasPairs][2];
  uint32_t query[kHeadsAtOnce][kMaxHeadDim / 4];
  float scores[kHeadsAtOnce][kRunKeys];  // then probabilities, then sums of values
  uint8_t high[kHeadsAtOnce][kRunKeys];
  uint8_t low[kHeadsAtOnce][kRunKeys];
};

// The KV heads' query heads are taken kHeadsAtOnce at a time.
struct AttendHeads {
  int kv_head;
  int group;  // query heads of a KV head
  int first;  // rank of the first
  int count;
  bool rank_major;
  int kv_heads;
  WITHY_DEVICE int Head(int i) const {
    return rank_major ? (first + i) * kv_heads + kv_head : kv_head * group + first + i;
  }
};

WITHY_DEVICE void FindBlocks(const AttendArgs& args, const Row& row, int run, int keys, int kv_head,
                             RunBlocks* to) {
  const int j = ThreadX();
  if (j >= kRunGroups) return;
  const int group = run * kRunGroups + j;
  if (j * kChunkTokens >= keys) {
    StoreShared(&to->format[j], int32_t{0});
    return;
  }
  KvFormat format = KvFormat::kQ8;
  const uint8_t* block;
  if (row.tail_group >= 0 && group >= row.tail_group) {
    block = args.tail + int64_t{row.tail_first + group - row.tail_group} * args.block_bytes;
  } else {
    block = BlockAt(args.contexts[row.context], args.shape.layers, args.layer, group * kChunkTokens,
                    &format);
  }
  const KvPlaces& places = args.places[static_cast<int>(format)];
  StoreShared(&to->block[j], block + int64_t{kv_head} * places.head_bytes);
  StoreShared(&to->places[j], places);
  StoreShared(&to->format[j], static_cast<int32_t>(format));
}

struct ValueScale {
  float scale;
  int32_t zero;
};

// Of V of a key.
WITHY_DEVICE ValueScale LoadValueScale(const AttendArgs& args, int key, int keys,
                                       const RunBlocks& blocks) {
  float scale = 0.0f;
  int32_t zero = 0;
  if (key < keys) {
    const int j = key / kChunkTokens;
    const int token = key % kChunkTokens;
    const auto format = static_cast<KvFormat>(LoadShared(&blocks.format[j]));
    const KvPlaces at = LoadShared(&blocks.places[j]);
    const uint8_t* block = LoadShared(&blocks.block[j]);
    const VWidth width = WidthOf(format);
    if (width == kV8) {
      scale = Load(reinterpret_cast<const float*>(block + at.v_scale) + token);
    } else if (width != kVHalf) {
      const float unit = Load(reinterpret_cast<const float*>(block + at.units) + 1);
      scale = static_cast<float>(Load(block + at.v_scale + token)) * unit;
      zero = ZeroUnits(width == kV4 ? 4 : 2, Load(block + at.zero + token) >> 4);
    }
  }
  return {scale, zero};
}
WITHY_DEVICE void StoreValueScale(int key, const ValueScale& v, RunValues* to) {
  StoreShared(&to->scale[key], v.scale);
  StoreShared(&to->zero[key], v.zero);
}

// The largest V scale of each width; a warp for each.
WITHY_DEVICE void FindWidest(int keys, AttendShared* s) {
  const int width = ThreadX() / 32;
  if (width >= kVWidths) return;
  float most = 0.0f;
  int32_t has = 0;
  for (int key = ThreadX() % 32; key < keys; key += 32) {
    const auto format = static_cast<KvFormat>(LoadShared(&s->blocks.format[key / kChunkTokens]));
    if (WidthOf(format) != width) continue;
    has = 1;
    most = Max(most, LoadShared(&s->values.scale[key]));
  }
  most = WarpMax(most);
  has = WarpSum(has);
  if (ThreadX() % 32 == 0) {
    StoreShared(&s->widest[width], most);
    StoreShared(&s->has[width], has);
  }
}

WITHY_DEVICE void LoadQueries(const AttendArgs& args, int row, const AttendHeads& heads,
                              AttendShared* s) {
  const Shape& shape = args.shape;
  const int words = shape.head_dim / 4;
  for (int i = ThreadX(); i < heads.count * words; i += kThreads) {
    const int64_t at = int64_t{row} * shape.heads + heads.Head(i / words);
    StoreShared(&s->query[i / words][i % words],
                LoadConst(reinterpret_cast<const uint32_t*>(args.queries.q + at * shape.head_dim) +
                          i % words));
  }
  if (ThreadX() < heads.count) {
    const int64_t at = int64_t{row} * shape.heads + heads.Head(ThreadX());
    StoreShared(&s->query_scale[ThreadX()], LoadConst(args.queries.scale + at));
    StoreShared(&s->query_sum[ThreadX()], LoadConst(args.queries.sum + at));
  }
}

// What the run's first position makes of the factors of the key bias.
WITHY_DEVICE void LoadBias(const AttendArgs& args, int row, int run, const AttendHeads& heads,
                           AttendShared* s) {
  const KeyBiasTables& bias = args.bias;
  const int pairs = LoadConst(bias.counts + heads.kv_head);
  const float* of_run = bias.of_run + int64_t{run} * bias.angles * 2;
  for (int i = ThreadX(); i < heads.count * kMaxBiasPairs; i += kThreads) {
    const int pair = i % kMaxBiasPairs;
    if (pair >= pairs) continue;
    const int64_t at =
        ((int64_t{row} * args.shape.heads + heads.Head(i / kMaxBiasPairs)) * kMaxBiasPairs + pair) *
        2;
    const int angle = bias.pairs[heads.kv_head * kMaxBiasPairs + pair].angle;
    const float c = LoadConst(of_run + angle * 2);
    const float n = LoadConst(of_run + angle * 2 + 1);
    const float cosine = LoadConst(args.queries.bias + at);
    const float sine = LoadConst(args.queries.bias + at + 1);
    StoreShared(&s->bias[i / kMaxBiasPairs][pair][0], cosine * c + sine * n);
    StoreShared(&s->bias[i / kMaxBiasPairs][pair][1], sine * c - cosine * n);
  }
}

// Products of the queries with fields of kBits of a key and with its group's means.
template <int kBits>
WITHY_DEVICE void FieldDots(const KvPlaces& at, const uint8_t* block, int head_dim, int token,
                            int count, const AttendShared& s, int32_t (&dot)[kHeadsAtOnce],
                            int32_t (&mean)[kHeadsAtOnce]) {
  constexpr int kRows = 8 / kBits;
  constexpr uint32_t kMask = kBits == 4 ? 0x0f0f0f0fu : 0x03030303u;
  for (int d = 0; d < head_dim / 4; d += kRows) {
    const uint32_t word =
        Load(reinterpret_cast<const uint32_t*>(block + at.k) + d / kRows * 16 + token);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const uint32_t fields = (word >> (kBits * n)) & kMask;
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        if (i < count) dot[i] = Dp4a(fields, LoadShared(&s.query[i][d + n]), dot[i]);
      }
    }
  }
  for (int d = 0; d < head_dim / 4; d += 2) {
    const uint32_t word = Load(reinterpret_cast<const uint32_t*>(block + at.k_mean) + d / 2);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t fields = (word >> (4 * n)) & 0x0f0f0f0fu;
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        if (i < count) mean[i] = Dp4a(fields, LoadShared(&s.query[i][d + n]), mean[i]);
      }
    }
  }
}

// Scores of a thread's key.
WITHY_DEVICE void Score(const AttendArgs& args, int row, int key, const AttendHeads& heads,
                        AttendShared* s) {
  const int head_dim = args.shape.head_dim;
  const int j = key / kChunkTokens;
  const int token = key % kChunkTokens;
  const auto format = static_cast<KvFormat>(LoadShared(&s->blocks.format[j]));
  const KvPlaces& at = args.places[static_cast<int>(format)];
  const uint8_t* block = LoadShared(&s->blocks.block[j]);
  const int bits = KBitsOf(format);
  float score[kHeadsAtOnce] = {};
  if (bits == 16) {
    for (int i = 0; i < heads.count; ++i) {
      const float* q =
          args.queries.rotated + (int64_t{row} * args.shape.heads + heads.Head(i)) * head_dim;
      float sum = 0.0f;
      for (int d = 0; d < head_dim; ++d) {
        const uint16_t k = Load(reinterpret_cast<const uint16_t*>(block + at.k) + d * 16 + token);
        sum = Fma(HalfFloat(k), LoadConst(q + d), sum);
      }
      StoreShared(&s->scores[i][key], sum * args.shape.scale);
    }
    return;
  }
  int32_t dot[kHeadsAtOnce] = {};
  if (bits == 8) {
    for (int d = 0; d < head_dim / 4; ++d) {
      const uint32_t word =
          Load(reinterpret_cast<const uint32_t*>(block + at.k) + d * 16 + token) ^ 0x80808080u;
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        if (i < heads.count) dot[i] = Dp4a(word, LoadShared(&s->query[i][d]), dot[i]);
      }
    }
    const float scale = Load(reinterpret_cast<const float*>(block + at.k_scale) + token);
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (i < heads.count) {
        score[i] = static_cast<float>(dot[i]) * scale * LoadShared(&s->query_scale[i]);
      }
    }
  } else {
    int32_t mean[kHeadsAtOnce] = {};
    if (bits == 4) {
      FieldDots<4>(at, block, head_dim, token, heads.count, *s, dot, mean);
    } else {
      FieldDots<2>(at, block, head_dim, token, heads.count, *s, dot, mean);
    }
    const auto* units = reinterpret_cast<const float*>(block + at.units);
    const float scale = static_cast<float>(Load(block + at.k_scale + token)) * Load(units);
    const float mean_unit = Load(units + 2);
    const int zero = ZeroUnits(bits, Load(block + at.zero + token) & 15);
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (i >= heads.count) break;
      const int32_t sum = LoadShared(&s->query_sum[i]);
      const float q_scale = LoadShared(&s->query_scale[i]);
      const float of_mean = static_cast<float>(mean[i] - kKvMeanZero * sum) * mean_unit * q_scale;
      const float fields = static_cast<float>(dot[i] * kKvZeroUnits - zero * sum) * scale;
      score[i] = Fma(fields, q_scale * (1.0f / kKvZeroUnits), of_mean);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    if (i < heads.count) StoreShared(&s->scores[i][key], score[i]);
  }
}

WITHY_DEVICE void AddKeyBias(const AttendArgs& args, int key, const AttendHeads& heads,
                             AttendShared* s) {
  const int pairs = LoadConst(args.bias.counts + heads.kv_head);
  for (int pair = 0; pair < pairs; ++pair) {
    const int angle = args.bias.pairs[heads.kv_head * kMaxBiasPairs + pair].angle;
    const float* in_run = args.bias.in_run + int64_t{angle} * 2 * kRunKeys + key;
    const float c = LoadConst(in_run);
    const float n = LoadConst(in_run + kRunKeys);
    for (int i = 0; i < heads.count; ++i) {
      float v = LoadShared(&s->scores[i][key]);
      v = Fma(c, LoadShared(&s->bias[i][pair][0]), v);
      v = Fma(n, LoadShared(&s->bias[i][pair][1]), v);
      StoreShared(&s->scores[i][key], v);
    }
  }
}

// A warp turns the scores of its query head into probabilities. Writes maximum, sum and densities.
WITHY_DEVICE void Softmax(const AttendArgs& args, int keys, int i, float* part, AttendShared* s) {
  const int lane = ThreadX() % 32;
  float max = -3.0e38f;
  for (int key = lane; key < keys; key += 32) max = Max(max, LoadShared(&s->scores[i][key]));
  max = WarpMax(max);
  float sum = 0.0f;
  int32_t zeros[2] = {};  // of kV4 and kV2
  for (int step = 0; step < kRunKeys / 32; ++step) {
    const int key = step * 32 + lane;
    float p = 0.0f;
    int32_t units = 0;
    VWidth width = kV8;
    if (key < keys) {
      width = WidthOf(static_cast<KvFormat>(LoadShared(&s->blocks.format[key / kChunkTokens])));
      p = Exp(LoadShared(&s->scores[i][key]) - max);
      const float widest = LoadShared(&s->widest[width]);
      const float to_units = widest > 1e-30f ? Divide(16383.0f, widest) : 0.0f;
      units = RoundToInt(p * (LoadShared(&s->values.scale[key]) * to_units));
      const int32_t zero = units * LoadShared(&s->values.zero[key]);
      if (width == kV4) zeros[0] += zero;
      if (width == kV2) zeros[1] += zero;
    }
    sum += p;
    StoreShared(&s->high[i][key], static_cast<uint8_t>(units >> 7));
    StoreShared(&s->low[i][key], static_cast<uint8_t>(units & 127));
    StoreShared(&s->scores[i][key], width == kVHalf ? p : 0.0f);
    if (args.densities) {
      float density = p;
#pragma unroll
      for (int d = 8; d > 0; d /= 2) density += ShuffleXor(density, d);
      if (lane % 16 == 0) Store(part + args.shape.head_dim + 2 + key / kChunkTokens, density);
    }
  }
  sum = WarpSum(sum);
  if (LoadShared(&s->has[kV4]) != 0) zeros[0] = WarpSum(zeros[0]);
  if (LoadShared(&s->has[kV2]) != 0) zeros[1] = WarpSum(zeros[1]);
  if (lane != 0) return;
  Store(part + args.shape.head_dim, max);
  Store(part + args.shape.head_dim + 1, sum);
  for (int w = 0; w < kVWidths; ++w) {
    StoreShared(&s->unit[i][w], LoadShared(&s->widest[w]) * (1.0f / 16383.0f));
    const int32_t zero = w == kV4 ? zeros[0] : w == kV2 ? zeros[1] : 0;
    StoreShared(&s->zeros[i][w], static_cast<float>(zero) * (1.0f / kKvZeroUnits));
  }
}

// Adds probabilities x V of dimension d over group j, at 8, 4 or 2 bits: (128 * high + low) sums.
template <int kBits>
WITHY_DEVICE void AddValues(const KvPlaces& at, const uint8_t* block, int head_dim, int j, int d,
                            int count, const AttendShared& s, int32_t (&high)[kHeadsAtOnce],
                            int32_t (&low)[kHeadsAtOnce]) {
  constexpr int kQuads = 8 / kBits;  // of tokens in a word
  constexpr uint32_t kMask = kBits == 4 ? 0x0f0f0f0fu : kBits == 2 ? 0x03030303u : 0xffffffffu;
#pragma unroll
  for (int word = 0; word < 4 / kQuads; ++word) {
    const int64_t offset = kBits == 8 ? int64_t{word} * head_dim * 4 + d * 4
                                      : (d / 16 * (4 / kQuads) + word) * 64 + d % 16 * 4;
    const uint32_t v = Load(reinterpret_cast<const uint32_t*>(block + at.v + offset));
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const uint32_t fields = (v >> (kBits == 8 ? 0 : kBits * quad)) & kMask;
      const int p = (j * kChunkTokens + (word * kQuads + quad) * 4) / 4;
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        if (i >= count) break;
        high[i] =
            Dp4a(fields, LoadShared(reinterpret_cast<const uint32_t*>(s.high[i]) + p), high[i]);
        low[i] = Dp4a(fields, LoadShared(reinterpret_cast<const uint32_t*>(s.low[i]) + p), low[i]);
      }
    }
  }
}

// Which dimension a thread sums, and over which groups: those that are `part` modulo `parts`.
struct ValueItem {
  int d;
  int part;
  int parts;
};

// Sums a dimension's values of one width: 128 * high + low.
WITHY_DEVICE void SumFields(const AttendArgs& args, VWidth width, int keys, const ValueItem& item,
                            int count, const AttendShared& s, int32_t (&sums)[kHeadsAtOnce]) {
  const int groups = (keys + kChunkTokens - 1) / kChunkTokens;
  const int head_dim = args.shape.head_dim;
  int32_t high[kHeadsAtOnce] = {};
  int32_t low[kHeadsAtOnce] = {};
  for (int j = item.part; j < groups; j += item.parts) {
    const auto format = static_cast<KvFormat>(LoadShared(&s.blocks.format[j]));
    if (WidthOf(format) != width) continue;
    const KvPlaces& at = args.places[static_cast<int>(format)];
    const uint8_t* block = LoadShared(&s.blocks.block[j]);
    if (width == kV8) {
      AddValues<8>(at, block, head_dim, j, item.d, count, s, high, low);
    } else if (width == kV4) {
      AddValues<4>(at, block, head_dim, j, item.d, count, s, high, low);
    } else {
      AddValues<2>(at, block, head_dim, j, item.d, count, s, high, low);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) sums[i] = high[i] * 128 + low[i];
}

// The same at 16 bits, in the order of the keys.
WITHY_DEVICE void SumHalves(const AttendArgs& args, int keys, const ValueItem& item, int count,
                            const AttendShared& s, float (&sums)[kHeadsAtOnce]) {
  const int head_dim = args.shape.head_dim;
  for (int j = item.part; j * kChunkTokens < keys; j += item.parts) {
    const auto format = static_cast<KvFormat>(LoadShared(&s.blocks.format[j]));
    if (format != KvFormat::kF16) continue;
    const auto* v = reinterpret_cast<const uint16_t*>(LoadShared(&s.blocks.block[j]) +
                                                      args.places[static_cast<int>(format)].v);
    for (int t = 0; t < kChunkTokens && j * kChunkTokens + t < keys; ++t) {
      const float value = HalfFloat(Load(v + t * head_dim + item.d));
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        if (i >= count) break;
        sums[i] = Fma(value, LoadShared(&s.scores[i][j * kChunkTokens + t]), sums[i]);
      }
    }
  }
}

// Probabilities x V of a run, into `part_of(i)`. Threads share out the groups of a dimension and
// add their sums through shared memory: those of 16 bits in the place of the V scales, a head at a
// time, in the order of the parts; then integers in the place of the scores.
template <typename PartOf>
WITHY_DEVICE void Values(const AttendArgs& args, int keys, const AttendHeads& heads, PartOf part_of,
                         AttendShared* s) {
  const int head_dim = args.shape.head_dim;
  const ValueItem item = {ThreadX() % head_dim, ThreadX() / head_dim, kThreads / head_dim};
  const bool adds = item.part < item.parts;
  const int at = item.part * head_dim + item.d;
  float out[kHeadsAtOnce] = {};
  if (LoadShared(&s->has[kVHalf]) != 0) {
    float sums[kHeadsAtOnce] = {};
    if (adds) SumHalves(args, keys, item, heads.count, *s, sums);
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (i >= heads.count) break;
      SyncBlock();
      if (adds) StoreShared(&s->values.scale[at], sums[i]);
      SyncBlock();
      for (int n = 0; item.part == 0 && n < item.parts; ++n) {
        out[i] += LoadShared(&s->values.scale[n * head_dim + item.d]);
      }
    }
  }
  for (int w = 0; w < kVHalf; ++w) {
    if (LoadShared(&s->has[w]) == 0) continue;
    int32_t sums[kHeadsAtOnce] = {};
    if (adds) SumFields(args, static_cast<VWidth>(w), keys, item, heads.count, *s, sums);
    SyncBlock();  // what is in the place of the scores was read
    auto* shared = reinterpret_cast<int32_t*>(&s->scores[0][0]);
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (adds && i < heads.count) StoreShared(shared + i * kRunKeys + at, sums[i]);
    }
    SyncBlock();
    if (item.part != 0) continue;
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (i >= heads.count) break;
      int32_t sum = 0;
      for (int n = 0; n < item.parts; ++n) {
        sum += LoadShared(shared + i * kRunKeys + n * head_dim + item.d);
      }
      const float value = static_cast<float>(sum) - LoadShared(&s->zeros[i][w]);
      out[i] = Fma(value, LoadShared(&s->unit[i][w]), out[i]);
    }
  }
  if (item.part != 0) return;
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    if (i < heads.count) Store(part_of(i) + item.d, out[i]);
  }
}

// Query heads of a KV head that a row computes.
WITHY_DEVICE int HeadsOf(const AttendArgs& args, int row, int kv_head) {
  const Shape& s = args.shape;
  const int computed = args.head_extent != nullptr ? LoadConst(args.head_extent + row) : s.heads;
  const int group = s.heads / s.kv_heads;
  return s.rank_major ? computed / s.kv_heads : computed > kv_head * group ? group : 0;
}

// Grid [runs, KV heads, tiles], of one row each.
WITHY_GLOBAL void WITHY_THREADS(kThreads) AttendKernel(AttendArgs args) {
  LetNextStart();
  WaitForPrior();
  auto* s = reinterpret_cast<AttendShared*>(SharedMemory());
  const Shape& shape = args.shape;
  const int run = BlockX();
  const int row = args.tiles[BlockZ()].first;
  const int at = row - args.first_row;
  const int planned = args.wanted == nullptr ? row : LoadConst(args.wanted + row);
  const Row& of_row = args.row[planned];
  const int seen = of_row.position + 1 - run * kRunKeys;
  if (seen <= 0) return;
  const int keys = seen < kRunKeys ? seen : kRunKeys;
  AttendHeads heads;
  heads.kv_head = BlockY();
  heads.kv_heads = shape.kv_heads;
  heads.group = shape.heads / shape.kv_heads;
  heads.rank_major = shape.rank_major;
  const int count = HeadsOf(args, row, heads.kv_head);
  if (count == 0) return;
  const int warp = ThreadX() / 32;
  const auto part_of = [&](int i) {
    return args.parts + ((int64_t{at} * shape.heads + heads.Head(i)) * args.runs + run) *
                            (shape.head_dim + kPartExtra);
  };
  FindBlocks(args, of_row, run, keys, heads.kv_head, &s->blocks);
  SyncBlock();
  for (heads.first = 0; heads.first < count; heads.first += kHeadsAtOnce) {
    heads.count = count - heads.first < kHeadsAtOnce ? count - heads.first : kHeadsAtOnce;
    // Each time: the values use its place.
    StoreValueScale(ThreadX(), LoadValueScale(args, ThreadX(), keys, s->blocks), &s->values);
    LoadQueries(args, planned, heads, s);
    if (args.bias.pairs != nullptr) LoadBias(args, planned, run, heads, s);
    SyncBlock();
    FindWidest(keys, s);
    if (ThreadX() < keys) {
      Score(args, planned, ThreadX(), heads, s);
      if (args.bias.pairs != nullptr) AddKeyBias(args, ThreadX(), heads, s);
    }
    SyncBlock();
    if (warp < heads.count) Softmax(args, keys, warp, part_of(warp), s);
    SyncBlock();
    Values(args, keys, heads, part_of, s);
    SyncBlock();
  }
}

}  // namespace withy::engine::WITHY_GPU
