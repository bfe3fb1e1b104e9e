// Attention over 8-bit KV blocks. Included by kernels_*.cc after vec-inl.h and the primitives
// DotKv(acc, K bytes, query quad), DotVp(acc, V bytes, probability quad < 128) and kKvOffset, the
// part of K's offset of 128 that DotKv does not remove.
//
// Keys form groups of 16 positions (one block each), and groups form runs of 16. Each run has its
// own maximum, sum and output; runs are merged in order. Probabilities times V scales become 14-bit
// numbers relative to the run's largest V scale, stored as two 7-bit halves. So both products are
// integer, and sums within a run are exact.
#include <cstdlib>

#include "engine/cpu/attention.h"

namespace withy::engine::WITHY_TARGET {

inline constexpr int kRunGroups = 16;
inline constexpr int kRunKeys = kRunGroups * kChunkTokens;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kFirstLines = 64;  // prefetched before anything is computed
inline constexpr float kLowest = -3.0e38f;

// One query head of one row, quantised, with its running softmax.
struct Query {
  alignas(64) int8_t q[kMaxHeadDim];
  alignas(64) float out[kMaxHeadDim];
  float scale;   // scale of q times the softmax scale
  int32_t init;  // -kKvOffset * sum(q), the accumulator's start: K is stored with an offset
  int visible;
  const AttentionRow* row;
  float max;
  float sum;
};

WITHY_INLINE const std::byte* BlockOf(const AttentionRow& row, int group) {
  if (row.tail != nullptr && group >= row.tail_group) return row.tail[group - row.tail_group];
  return row.memory + size_t{row.blocks[group * row.block_stride].units} * KvBlockName::kUnitBytes;
}

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
  // Number of cache lines left to fetch.
  int Lines(const KvGeometry& g) const {
    int groups = 0;
    for (int i = current_; i < parts_; ++i) groups += part_[i].end - part_[i].begin;
    return lines_ + groups * static_cast<int>(g.HeadBytes() / 64);
  }
  WITHY_INLINE void Fetch(const KvGeometry& g, int head, int lines) {
    for (; lines > 0; --lines, --lines_, line_ += 64) {
      while (lines_ == 0) {
        if (current_ == parts_) return;
        Part& part = part_[current_];
        line_ = BlockOf(*part.row, part.begin) + g.KScaleOffset(head);
        lines_ = static_cast<int>(g.HeadBytes() / 64);
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
  Query query[kAttentionQueries];
  alignas(64) float scores[kAttentionQueries][kRunKeys];
  alignas(64) uint8_t high[kAttentionQueries][kRunKeys];
  alignas(64) uint8_t low[kAttentionQueries][kRunKeys];
  float unit[kAttentionQueries];  // value of 1 in `low`; 1 in `high` is 128 times that
  alignas(64) float run_out[kAttentionQueries][kMaxHeadDim];
  float* density[kAttentionQueries];  // chunk sums of this query relative to run maxima, or nullptr
  KvPrefetcher next;
  int fetch_lines;  // lines to prefetch per query and group
};

inline void PrepareQuery(const float* q, int head_dim, float scale, const AttentionRow& row,
                         Query* out) {
  out->scale = QuantizeHead(q, head_dim, out->q) * scale;
  int32_t sum = 0;
  for (int d = 0; d < head_dim; ++d) {
    sum += out->q[d];
    out->out[d] = 0.0f;
  }
  out->init = -kKvOffset * sum;
  out->visible = row.visible;
  out->row = &row;
  out->max = kLowest;
  out->sum = 0.0f;
}

// Scores of T queries over one group.
template <int T>
inline void ScoreQueries(const uint8_t* k, F16 k_scale, int head_dim, int group_in_run,
                         AttentionScratch* s, int first) {
  const Query* query = s->query + first;
  I16 acc[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t] = SplatI(query[t].init);
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

// Scores of queries [first, first + n), which read the same block, over one group.
inline void ScoreGroup(const KvGeometry& g, const std::byte* block, int head, int group_in_run,
                       AttentionScratch* s, int first, int n) {
  const uint8_t* k = reinterpret_cast<const uint8_t*>(block + g.KOffset(head));
  const F16 k_scale = Load(reinterpret_cast<const float*>(block + g.KScaleOffset(head)));
  const int end = first + n;
  for (; first + kScoreQueries <= end; first += kScoreQueries) {
    ScoreQueries<kScoreQueries>(k, k_scale, g.head_dim, group_in_run, s, first);
  }
  for (; first + 2 <= end; first += 2) {
    ScoreQueries<2>(k, k_scale, g.head_dim, group_in_run, s, first);
  }
  if (first < end) ScoreQueries<1>(k, k_scale, g.head_dim, group_in_run, s, first);
}

// Computes D tiles of 16 dimensions of run_out, from dimension d on, for T queries that read the
// same blocks: probabilities x V over the groups of a run.
template <int T, int D>
inline void ValueTile(const KvGeometry& g, int head, int first_group, int groups, int d,
                      AttentionScratch* s, int first) {
  const size_t head_at = g.VOffset(head);
  I16 high[T][D];
  I16 low[T][D];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int n = 0; n < D; ++n) high[t][n] = low[t][n] = SplatI(0);
  }
  for (int j = 0; j < groups; ++j) {
    s->next.Fetch(g, head, s->fetch_lines);
    const std::byte* block = BlockOf(*s->query[first].row, first_group + j);
    const int8_t* v = reinterpret_cast<const int8_t*>(block + head_at) + d * 4;
    for (int quad = 0; quad < 4; ++quad, v += g.head_dim * 4) {
      const int at = j * kChunkTokens + quad * 4;
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
        for (int n = 0; n < D; ++n) {
          high[t][n] = DotVp(high[t][n], v + n * 64, s->high[first + t] + at);
          low[t][n] = DotVp(low[t][n], v + n * 64, s->low[first + t] + at);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int n = 0; n < D; ++n) {
      const F16 sum = MulAdd(ToFloat(high[t][n]), Splat(128.0f), ToFloat(low[t][n]));
      Store(sum * Splat(s->unit[first + t]), s->run_out[first + t] + d + n * kTileRows);
    }
  }
}

template <int T>
inline void ValueQueries(const KvGeometry& g, int head, int first_group, int groups,
                         AttentionScratch* s, int first) {
  int d = 0;
  for (; d + kValueTiles * kTileRows <= g.head_dim; d += kValueTiles * kTileRows) {
    ValueTile<T, kValueTiles>(g, head, first_group, groups, d, s, first);
  }
  for (; d < g.head_dim; d += kTileRows) {
    ValueTile<T, 1>(g, head, first_group, groups, d, s, first);
  }
}

// Number of groups of a run that a query sees.
WITHY_INLINE int GroupsSeen(const Query& query, int run) {
  const int keys = query.visible - run * kRunKeys;
  if (keys <= 0) return 0;
  return keys >= kRunKeys ? kRunGroups : (keys + kChunkTokens - 1) / kChunkTokens;
}

// Whether two queries read the same block in every group that either of them sees.
WITHY_INLINE bool SameBlocks(const Query& a, const Query& b) {
  return a.row == b.row ||
         (a.row->blocks == b.row->blocks && a.row->tail == nullptr && b.row->tail == nullptr);
}

// Probabilities x V of all queries over a run.
inline void ValueRun(const KvGeometry& g, int head, int run, int queries, AttentionScratch* s) {
  for (int i = 0; i < queries;) {
    const int groups = GroupsSeen(s->query[i], run);
    bool together = i + kValueQueries <= queries;
    int most = groups;
    for (int t = 1; together && t < kValueQueries; ++t) {
      const int more = GroupsSeen(s->query[i + t], run);
      together = SameBlocks(s->query[i], s->query[i + t]);
      most = more > most ? more : most;
    }
    // A query's probabilities are zero beyond what it sees, so it may join a longer one. The blocks
    // are looked up through the first query's row, which must have all of them.
    if (together && (most == groups || s->query[i].row->tail == nullptr)) {
      ValueQueries<kValueQueries>(g, head, run * kRunGroups, most, s, i);
      i += kValueQueries;
    } else {
      ValueQueries<1>(g, head, run * kRunGroups, groups, s, i);
      ++i;
    }
  }
}

// Turns the scores of one query over a run into 14-bit probabilities. Returns false if the query
// sees nothing of the run.
inline bool SoftmaxRun(const KvGeometry& g, int head, int run, AttentionScratch* s, int i,
                       float* run_max, float* run_sum) {
  const Query& query = s->query[i];
  const int groups = GroupsSeen(query, run);
  std::memset(s->high[i] + groups * kChunkTokens, 0,
              static_cast<size_t>((kRunGroups - groups) * kChunkTokens));
  std::memset(s->low[i] + groups * kChunkTokens, 0,
              static_cast<size_t>((kRunGroups - groups) * kChunkTokens));
  s->unit[i] = 0.0f;
  if (groups == 0) return false;
  float* scores = s->scores[i];
  const size_t scale_at = g.VScaleOffset(head);
  // Lanes of the last group beyond the row's keys may hold anything, even NaN.
  const I16 mask = LanesBelow(query.visible - run * kRunKeys - (groups - 1) * kChunkTokens);
  alignas(64) float v_scale[kRunKeys];
  F16 m = Splat(kLowest);
  F16 top = Zero();
  for (int j = 0; j < groups; ++j) {
    const std::byte* block = BlockOf(*query.row, run * kRunGroups + j);
    F16 score = Load(scores + j * kChunkTokens);
    F16 scale = Load(reinterpret_cast<const float*>(block + scale_at));
    if (j == groups - 1) {
      score = Select(mask, score, Splat(kLowest));
      scale = Select(mask, scale, Zero());
      Store(score, scores + j * kChunkTokens);
    }
    Store(scale, v_scale + j * kChunkTokens);
    m = Max(m, score);
    top = Max(top, scale);
  }
  const F16 max = Splat(MaxLane(m));
  const float largest = MaxLane(top);
  const F16 to_units = Splat(largest > 1e-30f ? 16383.0f / largest : 0.0f);
  s->unit[i] = largest * (1.0f / 16383.0f);
  F16 total = Zero();
  for (int j = 0; j < groups; ++j) {
    const F16 p = Exp(Load(scores + j * kChunkTokens) - max);
    total = total + p;
    if (s->density[i] != nullptr) s->density[i][run * kRunGroups + j] = Sum(p);
    // This order of multiplication avoids denormal products of a small probability and a small
    // scale, which cost a hundred cycles each.
    const I16 units = RoundToInt(p * (Load(v_scale + j * kChunkTokens) * to_units));
    StoreBytes(ShiftRight<7>(units), reinterpret_cast<int8_t*>(s->high[i] + j * kChunkTokens));
    StoreBytes(units & SplatI(127), reinterpret_cast<int8_t*>(s->low[i] + j * kChunkTokens));
  }
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

// Calls fn(block, first, n) for each sequence of queries that read the same block of `group`. Skips
// queries that do not see the group.
template <typename Fn>
inline void ForSharedBlock(const AttentionScratch& s, int queries, int group, Fn fn) {
  for (int first = 0; first < queries;) {
    if (s.query[first].visible <= group * kChunkTokens) {
      ++first;
      continue;
    }
    const std::byte* block = BlockOf(*s.query[first].row, group);
    int n = 1;
    while (first + n < queries && s.query[first + n].visible > group * kChunkTokens &&
           BlockOf(*s.query[first + n].row, group) == block) {
      ++n;
    }
    fn(block, first, n);
    first += n;
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
    if (run > 0) s->next.Clear();
    AddRun(queries, run + 1, s);
    s->fetch_lines = s->next.Lines(g) / (end * queries) + 1;
    for (int j = 0; j < end; ++j) {
      ForSharedBlock(*s, queries, first_group + j, [&](const std::byte* block, int first, int n) {
        s->next.Fetch(g, head, n * s->fetch_lines);
        ScoreGroup(g, block, head, j, s, first, n);
      });
    }
    float run_max[kAttentionQueries];
    float run_sum[kAttentionQueries];
    bool live[kAttentionQueries];
    for (int i = 0; i < queries; ++i) {
      live[i] = SoftmaxRun(g, head, run, s, i, &run_max[i], &run_sum[i]);
    }
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
    const int chunks = (args.row[row].visible + kChunkTokens - 1) / kChunkTokens;
    if (args.density != nullptr) {
      row_density = args.density + (row * g.kv_heads + head) * args.density_stride;
      std::memset(row_density, 0, sizeof(float) * static_cast<size_t>(chunks));
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
