// Attention over 8-bit KV blocks. Included by kernels_*.cc after vec-inl.h and the primitives
// DotKv(acc, unsigned 64 bytes, signed quad) and DotVp(acc, signed 64 bytes, unsigned quad).
//
// Keys are taken in groups of 16 positions (one block each) and runs of 16 groups. A run yields its
// own maximum, sum and output; runs are merged in order. Probabilities times V scales go to 8 bits
// unsigned with a scale for each group, so both products are integer.
#include <cstdlib>

#include "engine/kernels/attention.h"

namespace withy::engine::WITHY_TARGET {

inline constexpr int kRunGroups = 16;
inline constexpr int kRunKeys = kRunGroups * kChunkTokens;
inline constexpr int kMaxHeadDim = 256;
inline constexpr float kLowest = -3.0e38f;

// One query: a head of a row, prepared.
struct Query {
  alignas(64) int8_t q[kMaxHeadDim];
  alignas(64) float out[kMaxHeadDim];
  float scale;   // of q, times the softmax scale
  int32_t init;  // -128 * sum(q): K is stored with that offset
  int visible;
  const AttentionRow* row;
  float max;
  float sum;
};

// Scratch of one thread for kAttentionQueries queries.
struct AttentionScratch {
  Query query[kAttentionQueries];
  alignas(64) float scores[kAttentionQueries][kRunKeys];
  alignas(64) uint8_t probs[kAttentionQueries][kRunKeys];
  float prob_scale[kAttentionQueries][kRunGroups];
  alignas(64) float run_out[kAttentionQueries][kMaxHeadDim];
  float* density[kAttentionQueries];  // chunk sums of this query relative to run maxima, or nullptr
};

WITHY_INLINE const std::byte* BlockOf(const AttentionRow& row, int group) {
  return row.tail != nullptr && group >= row.tail_group ? row.tail[group - row.tail_group]
                                                        : row.blocks[group];
}

inline void PrepareQuery(const float* q, int head_dim, float scale, const AttentionRow& row,
                         Query* out) {
  out->scale = QuantizeHead(q, head_dim, out->q) * scale;
  int32_t sum = 0;
  for (int d = 0; d < head_dim; ++d) {
    sum += out->q[d];
    out->out[d] = 0.0f;
  }
  out->init = -128 * sum;
  out->visible = row.visible;
  out->row = &row;
  out->max = kLowest;
  out->sum = 0.0f;
}

// scores[first .. first+n) of one group: all n queries read the same block.
inline void ScoreGroup(const KvGeometry& g, const std::byte* block, int head, int group_in_run,
                       AttentionScratch* s, int first, int n) {
  const uint8_t* k = reinterpret_cast<const uint8_t*>(block + g.KOffset() +
                                                      g.HeadBytes() * static_cast<size_t>(head));
  const F16 k_scale =
      Load(reinterpret_cast<const float*>(block + g.KScaleOffset()) + head * kChunkTokens);
  for (int i = first; i < first + n; ++i) {
    const Query& query = s->query[i];
    I16 acc = SplatI(query.init);
    for (int d = 0; d < g.head_dim; d += 4) acc = DotKv(acc, k + d * kChunkTokens, query.q + d);
    Store(ToFloat(acc) * k_scale * Splat(query.scale), s->scores[i] + group_in_run * kChunkTokens);
  }
}

// out[query] += probabilities x V of one group.
inline void ValueGroup(const KvGeometry& g, const std::byte* block, int head, int group_in_run,
                       AttentionScratch* s, int first, int n) {
  const int8_t* v = reinterpret_cast<const int8_t*>(block + g.VOffset() +
                                                    g.HeadBytes() * static_cast<size_t>(head));
  for (int i = first; i < first + n; ++i) {
    const uint8_t* p = s->probs[i] + group_in_run * kChunkTokens;
    const float scale = s->prob_scale[i][group_in_run];
    for (int d = 0; d < g.head_dim; d += 16) {
      I16 acc = SplatI(0);
      for (int t = 0; t < 4; ++t) acc = DotVp(acc, v + (t * g.head_dim + d) * 4, p + 4 * t);
      Store(MulAdd(ToFloat(acc), Splat(scale), Load(s->run_out[i] + d)), s->run_out[i] + d);
    }
  }
}

// Turns scores of one query over a run into 8-bit probabilities; returns false when it sees nothing
// of the run.
inline bool SoftmaxRun(const KvGeometry& g, int head, int run, AttentionScratch* s, int i,
                       float* run_max, float* run_sum) {
  const Query& query = s->query[i];
  const int keys = query.visible - run * kRunKeys;
  if (keys <= 0) return false;
  const int groups = keys >= kRunKeys ? kRunGroups : (keys + kChunkTokens - 1) / kChunkTokens;
  float* scores = s->scores[i];
  F16 m = Splat(kLowest);
  for (int j = 0; j < groups; ++j) {
    const I16 mask = LanesBelow(keys - j * kChunkTokens);
    const F16 v = Select(mask, Load(scores + j * kChunkTokens), Splat(kLowest));
    Store(v, scores + j * kChunkTokens);
    m = Max(m, v);
  }
  const float max = MaxLane(m);
  F16 total = Zero();
  for (int j = 0; j < groups; ++j) {
    const I16 mask = LanesBelow(keys - j * kChunkTokens);
    const F16 p = Exp(Load(scores + j * kChunkTokens) - Splat(max));
    total = total + p;
    if (s->density[i] != nullptr) s->density[i][run * kRunGroups + j] = Sum(p);
    const std::byte* block = BlockOf(*query.row, run * kRunGroups + j);
    const F16 v_scale =
        Load(reinterpret_cast<const float*>(block + g.VScaleOffset()) + head * kChunkTokens);
    const F16 w = Select(mask, p * v_scale, Zero());
    const float top = MaxLane(w);
    s->prob_scale[i][j] = top * (1.0f / 255.0f);
    const float inverse = top > 1e-35f ? 255.0f / top : 0.0f;
    StoreBytes(RoundToInt(w * Splat(inverse)),
               reinterpret_cast<int8_t*>(s->probs[i] + j * kChunkTokens));
  }
  for (int j = groups; j < kRunGroups; ++j) s->prob_scale[i][j] = 0.0f;
  std::memset(s->probs[i] + groups * kChunkTokens, 0,
              static_cast<size_t>((kRunGroups - groups) * kChunkTokens));
  *run_max = max;
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

// Calls fn(first, n) for runs of queries that read the same block of `group`; queries that do not
// reach it are left out.
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

// Attention of the queries in scratch, all of one KV head.
inline void AttendQueries(const KvGeometry& g, int head, int queries, AttentionScratch* s) {
  int visible = 0;
  for (int i = 0; i < queries; ++i) {
    visible = visible > s->query[i].visible ? visible : s->query[i].visible;
  }
  const int groups = (visible + kChunkTokens - 1) / kChunkTokens;
  for (int run = 0; run * kRunGroups < groups; ++run) {
    const int first_group = run * kRunGroups;
    const int end = groups - first_group < kRunGroups ? groups - first_group : kRunGroups;
    for (int j = 0; j < end; ++j) {
      ForSharedBlock(*s, queries, first_group + j, [&](const std::byte* block, int first, int n) {
        ScoreGroup(g, block, head, j, s, first, n);
      });
    }
    float run_max[kAttentionQueries];
    float run_sum[kAttentionQueries];
    bool live[kAttentionQueries];
    for (int i = 0; i < queries; ++i) {
      live[i] = SoftmaxRun(g, head, run, s, i, &run_max[i], &run_sum[i]);
      std::memset(s->run_out[i], 0, sizeof(float) * static_cast<size_t>(g.head_dim));
    }
    for (int j = 0; j < end; ++j) {
      ForSharedBlock(*s, queries, first_group + j, [&](const std::byte* block, int first, int n) {
        ValueGroup(g, block, head, j, s, first, n);
      });
    }
    for (int i = 0; i < queries; ++i) {
      if (live[i]) MergeRun(g.head_dim, run, run_max[i], run_sum[i], s, i);
    }
  }
}

// One KV head of the rows of one item: queries in batches of kAttentionQueries.
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
    const int heads = args.head_extent != nullptr ? args.head_extent[row] / g.kv_heads : group;
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
  // Not a container: code shared with other targets must not be compiled with this target's
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
