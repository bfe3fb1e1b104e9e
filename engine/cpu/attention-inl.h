// Attention over KV blocks of every format. Included by kernels_*.cc after vec-inl.h,
// elementwise-inl.h and the primitives
//   DotKv(acc, K bytes, query quad), DotVp(acc, V bytes, probability quad < 128) at 8 bits, and
//   kKvOffset, the part of K's offset of 128 that DotKv does not remove;
//   DotFields(sums, fields, quad) for fields of 4 and 2 bits, with Widen(sums) and kNarrowSums: the
//   sums hold eight products.
//
// Keys form groups of 16 positions (one block each), and groups form runs of 16. Each run has its
// own maximum, sum and output; runs are merged in order. Probabilities times V scales become 14-bit
// numbers relative to the largest V scale that the run has at this width of V, stored as two 7-bit
// halves. So both products are integer, and sums within a run are exact. A run with several formats
// is computed one width of V after the other.
//
// At 4 and 2 bits, a field u of V stands for scale * (u - zero). The zero's part is the same for
// all dimensions: the output loses sum(p * scale * zero). A field of K stands for
// mean + scale * (u - zero): q.k loses scale * zero * sum(q) and gains q.mean, which all tokens of
// a group share. The means of a run's 16 groups are laid out like the keys of one group, so that
// q.mean is found for all of them at once.
#include <cstdlib>

#include "engine/cpu/attention.h"

namespace withy::engine::WITHY_TARGET {

inline constexpr int kRunGroups = 16;
inline constexpr int kRunKeys = kRunGroups * kChunkTokens;
inline constexpr int kFirstLines = 64;  // prefetched before anything is computed
inline constexpr float kLowest = -3.0e38f;
inline constexpr float kZeroUnit = 1.0f / kKvZeroUnits;

// Widths of V.
enum VWidth : int { kV8, kV4, kV2, kVHalf, kVWidths };

WITHY_INLINE VWidth WidthOf(KvFormat format) {
  const int bits = VBits(format);
  return bits == 8 ? kV8 : bits == 4 ? kV4 : bits == 2 ? kV2 : kVHalf;
}

// A block that a row reads.
struct KvBlock {
  const std::byte* data;
  KvFormat format;
};

WITHY_INLINE KvBlock BlockOf(const AttentionRow& row, int group) {
  if (row.tail != nullptr && group >= row.tail_group) {
    return {row.tail[group - row.tail_group], KvFormat::kQ8};
  }
  const KvBlockName name = row.blocks[group * row.block_stride];
  return {row.memory + size_t{name.units} * KvBlockName::kUnitBytes, name.format};
}

// Some groups of a run, ascending.
struct GroupList {
  uint8_t group[kRunGroups];
  int count = 0;
  // Number of groups in the list below `end`.
  WITHY_INLINE int Below(int end) const {
    int n = count;
    while (n > 0 && group[n - 1] >= end) --n;
    return n;
  }
};

// The blocks of one run, as far as any query of a context sees them.
struct RunBlocks {
  KvBlock block[kRunGroups];
  GroupList of_width[kVWidths];
  int groups = 0;
  bool has_means = false;  // some block has K at 4 or 2 bits

  void Extend(const AttentionRow& row, int first_group, int end) {
    for (; groups < end; ++groups) {
      block[groups] = BlockOf(row, first_group + groups);
      const int bits = KBits(block[groups].format);
      has_means = has_means || bits == 4 || bits == 2;
      GroupList& list = of_width[WidthOf(block[groups].format)];
      list.group[list.count++] = static_cast<uint8_t>(groups);
    }
  }
};

// One query head of one row, quantised, with its running softmax.
struct Query {
  alignas(64) int8_t q[kMaxHeadDim];
  alignas(64) float rotated[kMaxHeadDim];
  alignas(64) float out[kMaxHeadDim];
  float scale;          // scale of q times the softmax scale
  float softmax_scale;  // for `rotated`
  int32_t sum_q;
  int visible;
  const AttentionRow* row;
  const RunBlocks* run;  // of the current run
  float max;
  float sum;
};

// Prefetches the keys and values of a head for the next run. Blocks lie anywhere in memory, so the
// hardware prefetcher cannot predict them. A few lines at a time, in order, are fetched throughout
// the run before, so that memory is always busy.
class KvPrefetcher {
 public:
  // Adds groups [begin, end) of a row's context.
  void Add(const AttentionRow& row, int begin, int end) {
    if (begin < end && parts_ < kAttentionQueries) part_[parts_++] = {&row, begin, end};
  }
  void Clear() { parts_ = current_ = lines_ = 0; }
  // About the number of cache lines left to fetch.
  int Lines(const KvGeometry& g) const {
    size_t bytes = 0;
    for (int i = current_; i < parts_; ++i) {
      for (int group = part_[i].begin; group < part_[i].end; ++group) {
        bytes += g.HeadBytes(BlockOf(*part_[i].row, group).format);
      }
    }
    return lines_ + static_cast<int>(bytes / 64);
  }
  WITHY_INLINE void Fetch(const KvGeometry& g, int head, int lines) {
    for (; lines > 0; --lines, --lines_, line_ += 64) {
      while (lines_ == 0) {
        if (current_ == parts_) return;
        Part& part = part_[current_];
        const KvBlock block = BlockOf(*part.row, part.begin);
        const size_t begin = g.HeadOffset(block.format, head) / 64;
        const size_t end = (g.HeadOffset(block.format, head + 1) + 63) / 64;
        line_ = block.data + begin * 64;
        lines_ = static_cast<int>(end - begin);
        if (++part.begin == part.end) ++current_;
      }
      __builtin_prefetch(line_);
    }
  }

 private:
  struct Part {
    const AttentionRow* row;
    int begin;
    int end;
  };
  Part part_[kAttentionQueries];
  int parts_ = 0;
  int current_ = 0;
  const std::byte* line_ = nullptr;
  int lines_ = 0;  // left of the current group
};

// Scratch of one thread for kAttentionQueries queries.
struct AttentionScratch {
  KvOffsets at[kKvFormats];  // of the current head
  Query query[kAttentionQueries];
  RunBlocks run[kAttentionQueries];
  alignas(64) uint8_t means[kMaxHeadDim * kRunGroups];  // K means of a run [d / 4][16 groups][4]
  alignas(64) float mean_unit[kRunGroups];
  alignas(64) float mean_scores[kAttentionQueries][kRunGroups];  // q.mean of the current run
  alignas(64) float scores[kAttentionQueries][kRunKeys];         // at 16 bits, later probabilities
  // The upper and the lower seven bits of the probabilities, side by side so that both are a
  // constant distance from one address.
  alignas(64) uint8_t halves[kAttentionQueries][2][kRunKeys];
  // Value of 1 in the lower bits, by width; 1 in the upper ones is 128 times that.
  float unit[kAttentionQueries][kVWidths];
  float zeros[kAttentionQueries][kVWidths];  // sum of units * zero
  alignas(64) float run_out[kAttentionQueries][kMaxHeadDim];
  float* density[kAttentionQueries];  // chunk sums of this query relative to run maxima, or nullptr
  KvPrefetcher next;
  int fetch_lines;  // lines to prefetch per query and group

  const KvOffsets& At(KvFormat format) const { return at[static_cast<int>(format)]; }
};

inline void PrepareQuery(const float* q, int head_dim, float scale, const AttentionRow& row,
                         Query* out) {
  RotateHead(q, head_dim, out->rotated);
  out->scale = QuantizeHead(out->rotated, head_dim, out->q) * scale;
  out->softmax_scale = scale;
  int32_t sum = 0;
  for (int d = 0; d < head_dim; ++d) {
    sum += out->q[d];
    out->out[d] = 0.0f;
  }
  out->sum_q = sum;
  out->visible = row.visible;
  out->row = &row;
  out->max = kLowest;
  out->sum = 0.0f;
}

// Scales of a lower format, one lane for each token.
WITHY_INLINE F16 LoadU8(const std::byte* p) {
  return ToFloat(WidenBytes(reinterpret_cast<const int8_t*>(p)) & SplatI(255));
}
// Zeros of K (kHalf 0) or V (1), in kKvZeroUnits.
template <int kBits, int kHalf>
WITHY_INLINE F16 LoadZeros(const std::byte* p) {
  const I16 both = WidenBytes(reinterpret_cast<const int8_t*>(p));
  return ToFloat((ShiftRight<4 * kHalf>(both) & SplatI(15)) + SplatI(KvZero(kBits, 0)));
}
WITHY_INLINE F16 LoadF16(const std::byte* p) {
  return LoadHalves(reinterpret_cast<const uint16_t*>(p));
}
WITHY_INLINE KvUnits LoadUnits(const std::byte* p) {
  KvUnits units;
  std::memcpy(&units, p, sizeof units);
  return units;
}

// Scores of T queries over one group at 8 bits.
template <int T>
inline void ScoreQueries(const uint8_t* k, F16 k_scale, int head_dim, int group_in_run,
                         AttentionScratch* s, int first) {
  const Query* query = s->query + first;
  I16 acc[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t] = SplatI(-kKvOffset * query[t].sum_q);
  for (int d = 0; d < head_dim; d += 4) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[t] = DotKv(acc[t], k + d * kChunkTokens, query[t].q + d);
  }
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
  if (width == kV8) tiles(ValueTile<T, kValueTiles>, ValueTile<T, 1>);
  if (width == kV4) tiles(ValueFieldTile<T, kValueTiles, 4>, ValueFieldTile<T, 1, 4>);
  if (width == kV2) tiles(ValueFieldTile<T, kValueTiles, 2>, ValueFieldTile<T, 1, 2>);
}

// Number of keys and groups of a run that a query sees.
WITHY_INLINE int KeysSeen(const Query& query, int run) {
  const int keys = query.visible - run * kRunKeys;
  return keys <= 0 ? 0 : keys >= kRunKeys ? kRunKeys : keys;
}
WITHY_INLINE int GroupsSeen(const Query& query, int run) {
  return (KeysSeen(query, run) + kChunkTokens - 1) / kChunkTokens;
}

// Whether two queries read the same block in every group that either of them sees.
WITHY_INLINE bool SameBlocks(const Query& a, const Query& b) {
  return a.row == b.row ||
         (a.row->blocks == b.row->blocks && a.row->tail == nullptr && b.row->tail == nullptr);
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

// Probabilities x V of all queries over a run.
inline void ValueRun(const KvGeometry& g, int head, int run, int queries, AttentionScratch* s) {
  for (int i = 0; i < queries;) {
    bool together = i + kValueQueries <= queries;
    for (int t = 1; together && t < kValueQueries; ++t) {
      together = s->query[i].run == s->query[i + t].run;
    }
    // A query's probabilities are zero beyond what it sees, so it may join a longer one.
    if (together) {
      ValueWidths<kValueQueries>(g, head, run, s, i);
      i += kValueQueries;
    } else {
      ValueWidths<1>(g, head, run, s, i++);
    }
  }
}

// The part of SoftmaxRun for groups of one width: the V scales of the keys, their maximum, and the
// maximum of the scores. `mask` is for the last group that the query sees.
template <VWidth kWidth>
WITHY_INLINE void FindMaxima(const Query& query, int groups, I16 mask, const AttentionScratch& s,
                             float* scores, float* v_scale, F16* max, F16* top) {
  const RunBlocks& run = *query.run;
  const GroupList& list = run.of_width[kWidth];
  const int count = list.Below(groups);
  F16 highest = *max;
  F16 largest = Zero();
  for (int n = 0; n < count; ++n) {
    const int j = list.group[n];
    const KvBlock& block = run.block[j];
    const std::byte* scales = block.data + s.At(block.format).v_scale;
    F16 score = Load(scores + j * kChunkTokens);
    F16 scale =
        kWidth == kV8 ? Load(reinterpret_cast<const float*>(scales))
        : kWidth == kVHalf
            ? Zero()
            : LoadU8(scales) * Splat(LoadUnits(block.data + s.At(block.format).units).v_scale);
    if (j == groups - 1) {
      score = Select(mask, score, Splat(kLowest));
      scale = Select(mask, scale, Zero());
      Store(score, scores + j * kChunkTokens);
    }
    Store(scale, v_scale + j * kChunkTokens);
    highest = Max(highest, score);
    largest = Max(largest, scale);
  }
  *max = highest;
  *top = largest;
}

// The part of SoftmaxRun that turns scores into probabilities, for groups of one width.
template <VWidth kWidth>
WITHY_INLINE void FindUnits(int run, int groups, F16 max, float largest, const float* v_scale,
                            AttentionScratch* s, int i, F16* total) {
  const RunBlocks& blocks = *s->query[i].run;
  const GroupList& list = blocks.of_width[kWidth];
  const int count = list.Below(groups);
  float* density = s->density[i] == nullptr ? nullptr : s->density[i] + run * kRunGroups;
  uint8_t* high = s->halves[i][0];
  uint8_t* low = s->halves[i][1];
  const F16 to_units = Splat(largest > 1e-30f ? 16383.0f / largest : 0.0f);
  F16 sum = *total;
  F16 zeros = Zero();
  for (int n = 0; n < count; ++n) {
    const int j = list.group[n];
    float* scores = s->scores[i] + j * kChunkTokens;
    const F16 p = Exp(Load(scores) - max);
    sum = sum + p;
    if (density != nullptr) density[j] = Sum(p);
    if (kWidth == kVHalf) {
      Store(p, scores);
      continue;
    }
    // This order of multiplication avoids denormal products of a small probability and a small
    // scale, which cost a hundred cycles each.
    const I16 units = RoundToInt(p * (Load(v_scale + j * kChunkTokens) * to_units));
    StoreBytes(ShiftRight<7>(units), reinterpret_cast<int8_t*>(high + j * kChunkTokens));
    StoreBytes(units & SplatI(127), reinterpret_cast<int8_t*>(low + j * kChunkTokens));
    if (kWidth == kV8) continue;
    const KvBlock& block = blocks.block[j];
    zeros = MulAdd(ToFloat(units), LoadZeros < kWidth == kV4 ? 4 : 2,
                   1 > (block.data + s->At(block.format).zero), zeros);
  }
  *total = sum;
  s->unit[i][kWidth] = largest * (1.0f / 16383.0f);
  s->zeros[i][kWidth] = kWidth == kV4 || kWidth == kV2 ? Sum(zeros) : 0.0f;
}

// Turns the scores of one query over a run into 14-bit probabilities. Returns false if the query
// sees nothing of the run.
inline bool SoftmaxRun(int run, AttentionScratch* s, int i, float* run_max, float* run_sum) {
  const Query& query = s->query[i];
  const int keys = KeysSeen(query, run);
  const int groups = (keys + kChunkTokens - 1) / kChunkTokens;
  for (uint8_t* half : s->halves[i]) {
    std::memset(half + groups * kChunkTokens, 0,
                static_cast<size_t>((kRunGroups - groups) * kChunkTokens));
  }
  for (int w = 0; w < kVWidths; ++w) s->unit[i][w] = s->zeros[i][w] = 0.0f;
  if (groups == 0) return false;
  // Lanes of the last group beyond the row's keys may hold anything, even NaN.
  const I16 mask = LanesBelow(keys - (groups - 1) * kChunkTokens);
  float* scores = s->scores[i];
  alignas(64) float v_scale[kRunKeys];
  F16 m = Splat(kLowest);
  F16 top[kVWidths] = {Zero(), Zero(), Zero(), Zero()};
  FindMaxima<kV8>(query, groups, mask, *s, scores, v_scale, &m, &top[kV8]);
  FindMaxima<kV4>(query, groups, mask, *s, scores, v_scale, &m, &top[kV4]);
  FindMaxima<kV2>(query, groups, mask, *s, scores, v_scale, &m, &top[kV2]);
  FindMaxima<kVHalf>(query, groups, mask, *s, scores, v_scale, &m, &top[kVHalf]);
  const F16 max = Splat(MaxLane(m));
  F16 total = Zero();
  const auto has = [&query](VWidth width) { return query.run->of_width[width].count > 0; };
  if (has(kV8)) FindUnits<kV8>(run, groups, max, MaxLane(top[kV8]), v_scale, s, i, &total);
  if (has(kV4)) FindUnits<kV4>(run, groups, max, MaxLane(top[kV4]), v_scale, s, i, &total);
  if (has(kV2)) FindUnits<kV2>(run, groups, max, MaxLane(top[kV2]), v_scale, s, i, &total);
  if (has(kVHalf)) FindUnits<kVHalf>(run, groups, max, 0.0f, v_scale, s, i, &total);
  *run_max = max.part[0][0];
  *run_sum = Sum(total);
  return true;
}

WITHY_INLINE float Exp1(float x) { return Exp(Splat(x)).part[0][0]; }

inline void MergeRun(int head_dim, int run, float run_max, float run_sum, AttentionScratch* s,
                     int i) {
  Query* query = &s->query[i];
  const float* run_out = s->run_out[i];
  const float max = query->max > run_max ? query->max : run_max;
  const float old_factor = run > 0 ? Exp1(query->max - max) : 0.0f;
  const float new_factor = Exp1(run_max - max);
  if (s->density[i] != nullptr) {
    const int chunks = (query->visible + kChunkTokens - 1) / kChunkTokens;
    for (int c = 0; c < chunks && c < (run + 1) * kRunGroups; ++c) {
      s->density[i][c] *= c < run * kRunGroups ? old_factor : new_factor;
    }
  }
  query->max = max;
  query->sum = query->sum * old_factor + run_sum * new_factor;
  for (int d = 0; d < head_dim; d += 16) {
    Store(Load(query->out + d) * Splat(old_factor) + Load(run_out + d) * Splat(new_factor),
          query->out + d);
  }
}

// Calls fn(block, first, n) for each sequence of queries that read the same block as group j of a
// run. Skips queries that do not see the group.
template <typename Fn>
inline void ForSharedBlock(const AttentionScratch& s, int queries, int run, int j, Fn fn) {
  const int position = run * kRunKeys + j * kChunkTokens;
  for (int first = 0; first < queries;) {
    if (s.query[first].visible <= position) {
      ++first;
      continue;
    }
    const KvBlock& block = s.query[first].run->block[j];
    int n = 1;
    while (first + n < queries && s.query[first + n].visible > position &&
           s.query[first + n].run->block[j].data == block.data) {
      ++n;
    }
    fn(block, first, n);
    first += n;
  }
}

// Looks up the blocks of a run that the queries read, each context once.
inline void FindBlocks(int queries, int run, AttentionScratch* s) {
  int contexts = 0;
  for (int i = 0; i < queries; ++i) {
    Query& query = s->query[i];
    if (i == 0 || !SameBlocks(s->query[i - 1], query)) s->run[contexts++] = RunBlocks{};
    RunBlocks& blocks = s->run[contexts - 1];
    blocks.Extend(*query.row, run * kRunGroups, GroupsSeen(query, run));
    query.run = &blocks;
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

// Adds the groups of a run that the queries will read to s->next, each context once.
inline void AddRun(int queries, int run, AttentionScratch* s) {
  const int begin = run * kRunGroups;
  for (int i = 0; i < queries; ++i) {
    if (i > 0 && SameBlocks(s->query[i - 1], s->query[i])) continue;
    s->next.Add(*s->query[i].row, begin, begin + GroupsSeen(s->query[i], run));
  }
}

// Attention of the queries in scratch, all of one KV head.
inline void AttendQueries(const KvGeometry& g, int head, int queries, AttentionScratch* s) {
  int visible = 0;
  for (int i = 0; i < queries; ++i) {
    visible = visible > s->query[i].visible ? visible : s->query[i].visible;
  }
  const int groups = (visible + kChunkTokens - 1) / kChunkTokens;
  s->next.Clear();
  AddRun(queries, 0, s);
  s->next.Fetch(g, head, kFirstLines);
  for (int run = 0; run * kRunGroups < groups; ++run) {
    const int first_group = run * kRunGroups;
    const int end = groups - first_group < kRunGroups ? groups - first_group : kRunGroups;
    FindBlocks(queries, run, s);
    FindMeans(g.head_dim, queries, s);
    if (run > 0) s->next.Clear();
    AddRun(queries, run + 1, s);
    s->fetch_lines = s->next.Lines(g) / (end * queries) + 1;
    for (int j = 0; j < end; ++j) {
      ForSharedBlock(*s, queries, run, j, [&](const KvBlock& block, int first, int n) {
        s->next.Fetch(g, head, n * s->fetch_lines);
        ScoreGroup(g, block, j, s, first, n);
      });
    }
    float run_max[kAttentionQueries];
    float run_sum[kAttentionQueries];
    bool live[kAttentionQueries];
    for (int i = 0; i < queries; ++i) live[i] = SoftmaxRun(run, s, i, &run_max[i], &run_sum[i]);
    ValueRun(g, head, run, queries, s);
    for (int i = 0; i < queries; ++i) {
      if (live[i]) MergeRun(g.head_dim, run, run_max[i], run_sum[i], s, i);
    }
  }
}

// Computes one item, a KV head of a group of rows, in batches of kAttentionQueries queries.
inline void AttendItem(const AttentionArgs& args, int row_begin, int row_end, int head,
                       AttentionScratch* s, float* density) {
  const KvGeometry& g = args.geometry;
  const int group = args.q_heads / g.kv_heads;
  for (int format = 1; format < kKvFormats; ++format) {
    s->at[format] = g.Offsets(static_cast<KvFormat>(format), head);
  }
  float* out[kAttentionQueries];
  float* to[kAttentionQueries];
  int n = 0;
  const auto flush = [&] {
    AttendQueries(g, head, n, s);
    for (int i = 0; i < n; ++i) {
      const float inverse = 1.0f / s->query[i].sum;
      for (int d = 0; d < g.head_dim; d += 16) {
        Store(Load(s->query[i].out + d) * Splat(inverse), out[i] + d);
      }
      RotateHead(out[i], g.head_dim, out[i]);
      if (to[i] == nullptr) continue;
      const int chunks = (s->query[i].visible + kChunkTokens - 1) / kChunkTokens;
      for (int c = 0; c < chunks; ++c) to[i][c] += s->density[i][c] * inverse;
    }
    n = 0;
  };
  for (int row = row_begin; row < row_end; ++row) {
    const int computed = args.head_extent != nullptr ? args.head_extent[row] : args.q_heads;
    const int heads = args.rank_major ? computed / g.kv_heads : computed > head * group ? group : 0;
    float* row_density = nullptr;
    if (args.density != nullptr) {
      row_density = args.density + (row * g.kv_heads + head) * args.density_stride;
    }
    for (int rank = 0; rank < heads; ++rank) {
      const int q_head = args.rank_major ? rank * g.kv_heads + head : head * group + rank;
      const ptrdiff_t at = static_cast<ptrdiff_t>(q_head) * g.head_dim;
      PrepareQuery(args.q + row * args.q_stride + at, g.head_dim, args.scale, args.row[row],
                   &s->query[n]);
      out[n] = args.out + row * args.out_stride + at;
      to[n] = row_density;
      s->density[n] = nullptr;
      if (row_density != nullptr) {
        s->density[n] = density + n * args.density_stride;
      }
      if (++n == kAttentionQueries) flush();
    }
  }
  if (n > 0) flush();
}

inline void Attention(const AttentionArgs& args, int item_begin, int item_end) {
  AttentionScratch scratch;
  // Not a container: its code is shared with other targets and must not contain this target's
  // instructions.
  float* density = nullptr;
  if (args.density != nullptr) {
    density = static_cast<float*>(
        std::malloc(sizeof(float) * kAttentionQueries * static_cast<size_t>(args.density_stride)));
  }
  const int step = AttentionRowsPerItem(args);
  for (int item = item_begin; item < item_end; ++item) {
    const int begin = item / args.geometry.kv_heads * step;
    const int end = begin + step < args.rows ? begin + step : args.rows;
    AttendItem(args, begin, end, item % args.geometry.kv_heads, &scratch, density);
  }
  std::free(density);
}

}  // namespace withy::engine::WITHY_TARGET
