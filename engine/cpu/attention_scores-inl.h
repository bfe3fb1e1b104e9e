// Attention's first part: products of queries and keys. Included by attention-inl.h, which says how
// fields of 4 and 2 bits are computed.
namespace withy::engine::WITHY_TARGET {

// Adds the products of T queries with the keys of one group at 8 bits.
template <int T>
WITHY_INLINE void AddScores(const uint8_t* k, int head_dim, const Query* query, I16* acc) {
#ifdef WITHY_MATRIX_SUMS
  if constexpr (T % 2 == 0) {
    const int8_t* q[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) q[t] = query[t].q;
    return AddQ8<T>(k, q, head_dim, acc);
  }
#endif
  for (int d = 0; d < head_dim; d += 4) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[t] = DotKv(acc[t], k + d * kChunkTokens, query[t].q + d);
  }
}

// Scores of T queries over one group at 8 bits.
template <int T>
inline void ScoreQueries(const uint8_t* k, F16 k_scale, int head_dim, int group_in_run,
                         AttentionScratch* s, int first) {
  const Query* query = s->query + first;
  I16 acc[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t] = SplatI(-kKvOffset * query[t].sum_q);
  AddScores<T>(k, head_dim, query, acc);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    Store(ToFloat(acc[t]) * k_scale * Splat(query[t].scale),
          s->scores[first + t] + group_in_run * kChunkTokens);
  }
}

// The same at 4 or 2 bits. The integers stay below 2^24, so that they are exact as floats.
template <int T, int kBits>
inline void ScoreFields(const std::byte* k, F16 k_scale, F16 k_zero, int head_dim, int group_in_run,
                        AttentionScratch* s, int first) {
  constexpr int kRows = 8 / kBits;  // of four dimensions, in 64 bytes
  const Query* query = s->query + first;
  I16 acc[T];
  FieldSums sums[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    acc[t] = SplatI(0);
    sums[t] = FieldSums{};
  }
  for (int d = 0; d < head_dim; k += 64) {
    const B64 line = LoadB64(k);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row, d += 4) {
      const B64 fields = Field<kBits>(line, row);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums[t] = DotFields(sums[t], fields, query[t].q + d);
    }
    if (kNarrowSums && d % 32 == 0) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        acc[t] = acc[t] + Widen(sums[t]);
        sums[t] = FieldSums{};
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const F16 dot = ToFloat(acc[t] + Widen(sums[t])) * Splat(static_cast<float>(kKvZeroUnits));
    const F16 of_zero = k_zero * Splat(static_cast<float>(query[t].sum_q));
    const F16 of_mean = Splat(s->mean_scores[first + t][group_in_run]);
    Store(MulAdd((dot - of_zero) * k_scale, Splat(kZeroUnit * query[t].scale), of_mean),
          s->scores[first + t] + group_in_run * kChunkTokens);
  }
}

// Products of T queries with the K means of a run's groups.
template <int T>
inline void ScoreMeans(int head_dim, AttentionScratch* s, int first) {
  const Query* query = s->query + first;
  I16 acc[T];
  FieldSums sums[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    acc[t] = SplatI(0);
    sums[t] = FieldSums{};
  }
  for (int d = 0; d < head_dim;) {
    const B64 fields = LoadB64(s->means + d * kRunGroups);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t] = DotFields(sums[t], fields, query[t].q + d);
    d += 4;
    if (kNarrowSums && d % 32 == 0) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        acc[t] = acc[t] + Widen(sums[t]);
        sums[t] = FieldSums{};
      }
    }
  }
  const F16 unit = Load(s->mean_unit);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const I16 dot = acc[t] + Widen(sums[t]) - SplatI(kKvMeanZero * query[t].sum_q);
    Store(ToFloat(dot) * unit * Splat(query[t].scale), s->mean_scores[first + t]);
  }
}

// Lays out the K means of a run's groups for ScoreMeans; those of other groups are zero.
inline void GatherMeans(const RunBlocks& run, int head_dim, AttentionScratch* s) {
  for (int j = 0; j < kRunGroups; ++j) {
    uint8_t* to = s->means + j * 4;
    const bool has_means =
        j < run.groups && (KBits(run.block[j].format) == 4 || KBits(run.block[j].format) == 2);
    s->mean_unit[j] = 0.0f;
    if (!has_means) {
      for (int d = 0; d < head_dim; d += 4) std::memset(to + d * kRunGroups, 0, 4);
      continue;
    }
    const KvBlock& block = run.block[j];
    s->mean_unit[j] = LoadUnits(block.data + s->At(block.format).units).k_mean;
    const std::byte* mean = block.data + s->At(block.format).k_mean;
    for (int d = 0; d < head_dim; d += 8, mean += 4) {
      uint32_t fields;
      std::memcpy(&fields, mean, 4);
      const uint32_t low = fields & 0x0f0f0f0fu;
      const uint32_t high = (fields >> 4) & 0x0f0f0f0fu;
      std::memcpy(to + d * kRunGroups, &low, 4);
      std::memcpy(to + (d + 4) * kRunGroups, &high, 4);
    }
  }
}

// The same at 16 bits, for one query.
inline void ScoreHalves(const std::byte* k, int head_dim, int group_in_run, AttentionScratch* s,
                        int i) {
  const Query& query = s->query[i];
  F16 acc = Zero();
  for (int d = 0; d < head_dim; ++d, k += 2 * kChunkTokens) {
    acc = MulAdd(LoadF16(k), Splat(query.rotated[d]), acc);
  }
  Store(acc * Splat(query.softmax_scale), s->scores[i] + group_in_run * kChunkTokens);
}

// Calls fn.operator()<T>(i) for queries [first, end), T at a time.
template <typename Fn>
WITHY_INLINE void ForScoredQueries(int first, int end, Fn fn) {
  for (; first + kScoreQueries <= end; first += kScoreQueries) {
    fn.template operator()<kScoreQueries>(first);
  }
  if (kScoreQueries > 3 && end - first == 3) return fn.template operator()<3>(first);
  for (; first + 2 <= end; first += 2) fn.template operator()<2>(first);
  if (first < end) fn.template operator()<1>(first);
}

// Scores of queries [first, first + n), which read the same block, over one group.
inline void ScoreGroup(const KvGeometry& g, const KvBlock& block, int group_in_run,
                       AttentionScratch* s, int first, int n) {
  const KvOffsets& at = s->At(block.format);
  const std::byte* k = block.data + at.k;
  const std::byte* scales = block.data + at.k_scale;
  const int end = first + n;
  const int bits = KBits(block.format);
  if (bits == 8) {
    const F16 scale = Load(reinterpret_cast<const float*>(scales));
    ForScoredQueries(first, end, [&]<int T>(int i) {
      ScoreQueries<T>(reinterpret_cast<const uint8_t*>(k), scale, g.head_dim, group_in_run, s, i);
    });
  } else if (bits == 16) {
    for (int i = first; i < end; ++i) ScoreHalves(k, g.head_dim, group_in_run, s, i);
  } else {
    const F16 scale = LoadU8(scales) * Splat(LoadUnits(block.data + at.units).k_scale);
    const F16 zero =
        bits == 4 ? LoadZeros<4, 0>(block.data + at.zero) : LoadZeros<2, 0>(block.data + at.zero);
    ForScoredQueries(first, end, [&]<int T>(int i) {
      if (bits == 4) return ScoreFields<T, 4>(k, scale, zero, g.head_dim, group_in_run, s, i);
      ScoreFields<T, 2>(k, scale, zero, g.head_dim, group_in_run, s, i);
    });
  }
}

// Adds what the bias of G groups of keys contributes, from group j on.
template <int G>
WITHY_INLINE void AddBiasToGroups(const float* const* table, const float* cosine, const float* sine,
                                  int pairs, int j, float* scores) {
  const int at = j * kChunkTokens;
  F16 sum[G];
#pragma GCC unroll 4
  for (int n = 0; n < G; ++n) sum[n] = Load(scores + at + n * kChunkTokens);
  for (int pair = 0; pair < pairs; ++pair) {
    const float* of_pair = table[pair] + at;
    const F16 c = Splat(cosine[pair]);
    const F16 s = Splat(sine[pair]);
#pragma GCC unroll 4
    for (int n = 0; n < G; ++n) {
      sum[n] = MulAdd(Load(of_pair + n * kChunkTokens), c, sum[n]);
      sum[n] = MulAdd(Load(of_pair + kRunKeys + n * kChunkTokens), s, sum[n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < G; ++n) Store(sum[n], scores + at + n * kChunkTokens);
}

// Adds the products of a query with the biases of a run's keys (AttentionKeyBias).
inline void AddKeyBias(int run, AttentionScratch* s, int i) {
  const Query& query = s->query[i];
  const AttentionKeyBias& bias = *s->bias;
  const int groups = GroupsSeen(query, run);
  // With p = first position of the run + j: cos(p) = cos(first) cos(j) - sin(first) sin(j), and so
  // on.
  float cosine[kMaxKeyBiasPairs];
  float sine[kMaxKeyBiasPairs];
  const float* table[kMaxKeyBiasPairs];
  const float* of_run = bias.of_run + static_cast<ptrdiff_t>(run) * bias.angles * 2;
  for (int pair = 0; pair < s->bias_count; ++pair) {
    const int angle = s->bias_pairs[pair].angle;
    const float c = of_run[angle * 2];
    const float n = of_run[angle * 2 + 1];
    cosine[pair] = query.bias_cos[pair] * c + query.bias_sin[pair] * n;
    sine[pair] = query.bias_sin[pair] * c - query.bias_cos[pair] * n;
    table[pair] = bias.in_run + static_cast<ptrdiff_t>(angle) * 2 * kRunKeys;
  }
  int j = 0;
  for (; j + 2 <= groups; j += 2) {
    AddBiasToGroups<2>(table, cosine, sine, s->bias_count, j, s->scores[i]);
  }
  if (j < groups) AddBiasToGroups<1>(table, cosine, sine, s->bias_count, j, s->scores[i]);
}

inline void CapScores(int run, AttentionScratch* s, int i) {
  float* scores = s->scores[i];
  const int keys = GroupsSeen(s->query[i], run) * kChunkTokens;
  for (int at = 0; at < keys; at += 16) {
    Store(SoftCapped(Load(scores + at), s->cap), scores + at);
  }
}

// Calls fn(block, first, n) for each sequence of queries that read the same block as group j of a
// run. Skips queries that do not see the group.
template <typename Fn>
inline void ForSharedBlock(const AttentionScratch& s, int queries, int run, int j, Fn fn) {
  const int position = run * kRunKeys + j * kChunkTokens;
  for (int first = 0; first < queries;) {
    if (s.query[first].visible <= position || run < s.query[first].first_run) {
      ++first;
      continue;
    }
    const KvBlock& block = s.query[first].run->block[j];
    int n = 1;
    while (first + n < queries && s.query[first + n].visible > position &&
           run >= s.query[first + n].first_run &&
           s.query[first + n].run->block[j].data == block.data) {
      ++n;
    }
    fn(block, first, n);
    first += n;
  }
}

// Finds the products of the queries with the K means of the run.
inline void FindMeans(int head_dim, int queries, AttentionScratch* s) {
  for (int first = 0; first < queries;) {
    const RunBlocks* run = s->query[first].run;
    int end = first + 1;
    while (end < queries && s->query[end].run == run) ++end;
    if (run->has_means) {
      GatherMeans(*run, head_dim, s);
      ForScoredQueries(first, end, [&]<int T>(int i) { ScoreMeans<T>(head_dim, s, i); });
    }
    first = end;
  }
}

}  // namespace withy::engine::WITHY_TARGET
