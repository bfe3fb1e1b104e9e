// Attention's third part: products of probabilities and values. Included by attention-inl.h.
namespace withy::engine::WITHY_TARGET {

// Adds the sums of a tile, (128 * high + low - zeros) * unit, to run_out, or replaces it.
WITHY_INLINE void AddTile(I16 high, I16 low, VWidth width, bool replace, AttentionScratch* s, int i,
                          int d) {
  float* out = s->run_out[i] + d;
  const F16 sum = MulAdd(ToFloat(high), Splat(128.0f), ToFloat(low));
  const F16 before = replace ? Zero() : Load(out);
  const F16 zeros = Splat(s->zeros[i][width] * kZeroUnit);
  Store(MulAdd(sum - zeros, Splat(s->unit[i][width]), before), out);
}

// The groups of a run that a tile sums, all of one width of V.
struct TileGroups {
  const RunBlocks* run;
  const uint8_t* group;
  int count;
  bool replace;  // the run's first width
};

#ifdef WITHY_PAIR_SUMS
// The same of sums that have the whole probabilities.
WITHY_INLINE void AddTile(I16 sums, VWidth width, bool replace, AttentionScratch* s, int i, int d) {
  float* out = s->run_out[i] + d;
  const F16 before = replace ? Zero() : Load(out);
  Store(MulAdd(ToFloat(sums), Splat(s->unit[i][width]), before), out);
}

// ValueTile of one tile over whole probabilities.
template <int T>
inline void ValuePairTile(const KvGeometry& g, int head, const TileGroups& groups, int d,
                          AttentionScratch* s, int first) {
  const size_t head_at = s->At(KvFormat::kQ8).v;
  PairSums sums[T] = {};
  for (int j = 0; j < groups.count; ++j) {
    s->next.Fetch(g, head, s->fetch_lines);
    const int group = groups.group[j];
    const std::byte* block = groups.run->block[group].data;
    const int8_t* v = reinterpret_cast<const int8_t*>(block + head_at) + d * 4;
    const int16_t* p = s->units[first] + group * kChunkTokens;
    for (int quad = 0; quad < 4; ++quad, v += g.head_dim * 4, p += 4) {
      DotPairs<T>(sums, v, p, kRunKeys);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    AddTile(AddPairs(sums[t]), kV8, groups.replace, s, first + t, d);
  }
}
#endif

// Computes D tiles of 16 dimensions of run_out, from dimension d on, for T queries that read the
// same blocks: probabilities x V over groups at 8 bits.
template <int T, int D>
inline void ValueTile(const KvGeometry& g, int head, const TileGroups& groups, int d,
                      AttentionScratch* s, int first) {
  const size_t head_at = s->At(KvFormat::kQ8).v;
  I16 high[T][D];
  I16 low[T][D];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int n = 0; n < D; ++n) high[t][n] = low[t][n] = SplatI(0);
  }
  for (int j = 0; j < groups.count; ++j) {
    s->next.Fetch(g, head, s->fetch_lines);
    const int group = groups.group[j];
    const std::byte* block = groups.run->block[group].data;
    const int8_t* v = reinterpret_cast<const int8_t*>(block + head_at) + d * 4;
    const uint8_t* p = s->halves[first][0] + group * kChunkTokens;
    for (int quad = 0; quad < 4; ++quad, v += g.head_dim * 4, p += 4) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
        for (int n = 0; n < D; ++n) {
          high[t][n] = DotVp(high[t][n], v + n * 64, p + t * 2 * kRunKeys);
          low[t][n] = DotVp(low[t][n], v + n * 64, p + t * 2 * kRunKeys + kRunKeys);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int n = 0; n < D; ++n) {
      AddTile(high[t][n], low[t][n], kV8, groups.replace, s, first + t, d + n * kTileRows);
    }
  }
}

// The same at 4 or 2 bits.
template <int T, int D, int kBits>
inline void ValueFieldTile(const KvGeometry& g, int head, const TileGroups& groups, int d,
                           AttentionScratch* s, int first) {
  constexpr int kQuads = 8 / kBits;   // token quads in 64 bytes
  constexpr int kLines = 4 / kQuads;  // of 64 bytes in a tile of a group
  constexpr VWidth kWidth = kBits == 4 ? kV4 : kV2;
  I16 high[T][D];
  I16 low[T][D];
  FieldSums high_sums[T][D];
  FieldSums low_sums[T][D];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int n = 0; n < D; ++n) {
      high[t][n] = low[t][n] = SplatI(0);
      high_sums[t][n] = low_sums[t][n] = FieldSums{};
    }
  }
  for (int j = 0; j < groups.count; ++j) {
    s->next.Fetch(g, head, s->fetch_lines);
    const int group = groups.group[j];
    const KvBlock& block = groups.run->block[group];
    const std::byte* v = block.data + s->At(block.format).v + d / kTileRows * kLines * 64;
    const uint8_t* of_group = s->halves[first][0] + group * kChunkTokens;
#pragma GCC unroll 2
    for (int line = 0; line < kLines; ++line) {
      B64 bytes[D];
#pragma GCC unroll 4
      for (int n = 0; n < D; ++n) bytes[n] = LoadB64(v + (n * kLines + line) * 64);
#pragma GCC unroll 4
      for (int quad = 0; quad < kQuads; ++quad) {
        const uint8_t* p = of_group + (line * kQuads + quad) * 4;
#pragma GCC unroll 4
        for (int n = 0; n < D; ++n) {
          const B64 fields = Field<kBits>(bytes[n], quad);
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t) {
            const uint8_t* of_query = p + t * 2 * kRunKeys;
            high_sums[t][n] = DotFields(high_sums[t][n], fields, of_query);
            low_sums[t][n] = DotFields(low_sums[t][n], fields, of_query + kRunKeys);
          }
        }
      }
    }
    if (kNarrowSums && (j % 2 == 1 || j + 1 == groups.count)) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
        for (int n = 0; n < D; ++n) {
          high[t][n] = high[t][n] + Widen(high_sums[t][n]);
          low[t][n] = low[t][n] + Widen(low_sums[t][n]);
          high_sums[t][n] = low_sums[t][n] = FieldSums{};
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int n = 0; n < D; ++n) {
      if (!kNarrowSums) {
        high[t][n] = Widen(high_sums[t][n]);
        low[t][n] = Widen(low_sums[t][n]);
      }
      AddTile(high[t][n], low[t][n], kWidth, groups.replace, s, first + t, d + n * kTileRows);
    }
  }
}

// The same at 16 bits, for one query. Reads no tokens that it does not see.
inline void ValueHalfTile(const KvGeometry& g, const TileGroups& groups, int keys, int d,
                          AttentionScratch* s, int i) {
  F16 sum = groups.replace ? Zero() : Load(s->run_out[i] + d);
  for (int j = 0; j < groups.count; ++j) {
    const int first = groups.group[j] * kChunkTokens;
    const std::byte* v = groups.run->block[groups.group[j]].data + s->At(KvFormat::kF16).v + 2 * d;
    for (int t = 0; t < kChunkTokens && first + t < keys; ++t, v += 2 * g.head_dim) {
      sum = MulAdd(LoadF16(v), Splat(s->scores[i][first + t]), sum);
    }
  }
  Store(sum, s->run_out[i] + d);
}

// Probabilities x V of T queries over groups of one width.
template <int T>
inline void ValueQueries(const KvGeometry& g, int head, VWidth width, const TileGroups& groups,
                         AttentionScratch* s, int first) {
  constexpr int kStep = kValueTiles * kTileRows;
  const auto tiles = [&](auto many, auto one) {
    int d = 0;
    for (; d + kStep <= g.head_dim; d += kStep) many(g, head, groups, d, s, first);
    for (; d < g.head_dim; d += kTileRows) one(g, head, groups, d, s, first);
  };
  if (width == kV8) {
#ifdef WITHY_PAIR_SUMS
    for (int d = 0; d < g.head_dim; d += kTileRows) {
      ValuePairTile<T>(g, head, groups, d, s, first);
    }
#else
    tiles(ValueTile<T, kValueTiles>, ValueTile<T, 1>);
#endif
  }
  if (width == kV4) tiles(ValueFieldTile<T, kValueTiles, 4>, ValueFieldTile<T, 1, 4>);
  if (width == kV2) tiles(ValueFieldTile<T, kValueTiles, 2>, ValueFieldTile<T, 1, 2>);
}

// Probabilities x V of T queries with the same blocks over a run.
template <int T>
inline void ValueWidths(const KvGeometry& g, int head, int run, AttentionScratch* s, int first) {
  int most = 0;
  for (int t = 0; t < T; ++t) {
    const int seen = GroupsSeen(s->query[first + t], run);
    most = seen > most ? seen : most;
  }
  const RunBlocks* blocks = s->query[first].run;
  bool replace = true;
  for (int w = 0; w < kVWidths; ++w) {
    const auto width = static_cast<VWidth>(w);
    const GroupList& list = blocks->of_width[width];
    const TileGroups groups = {blocks, list.group, list.Below(most), replace};
    if (groups.count == 0) continue;
    replace = false;
    if (width != kVHalf) {
      ValueQueries<T>(g, head, width, groups, s, first);
      continue;
    }
    for (int i = first; i < first + T; ++i) {
      const int keys = KeysSeen(s->query[i], run);
      for (int d = 0; d < g.head_dim; d += kTileRows) ValueHalfTile(g, groups, keys, d, s, i);
    }
  }
}

// Probabilities x V of all queries over a run, kValueQueries at a time; the last ones that share
// their blocks may be kLastValueQueries.
inline void ValueRun(const KvGeometry& g, int head, int run, int queries, AttentionScratch* s) {
  for (int i = 0; i < queries;) {
    int alike = 1;
    while (alike <= kLastValueQueries && i + alike < queries &&
           s->query[i].run == s->query[i + alike].run) {
      ++alike;
    }
    // A query's probabilities are zero beyond what it sees, so it may join a longer one.
    if (kLastValueQueries > kValueQueries && alike == kLastValueQueries) {
      ValueWidths<kLastValueQueries>(g, head, run, s, i);
      i += kLastValueQueries;
    } else if (alike >= kValueQueries) {
      ValueWidths<kValueQueries>(g, head, run, s, i);
      i += kValueQueries;
    } else {
      ValueWidths<1>(g, head, run, s, i++);
    }
  }
}

}  // namespace withy::engine::WITHY_TARGET
