// Attention over KV blocks of every format. Included by kernels_*.cc after vec-inl.h,
// elementwise-inl.h and the primitives
//   DotKv(acc, K bytes, query quad), DotVp(acc, V bytes, probability quad < 128) at 8 bits, and
//   kKvOffset, the part of K's offset of 128 that DotKv does not remove;
//   where WITHY_MATRIX_SUMS is defined, AddQ8 (quant_strip-inl.h) in place of DotKv for an even
//   number of queries;
//   where WITHY_PAIR_SUMS is defined, DotPairs(sums, V bytes, 14-bit probabilities) and
//   AddPairs(sums) in place of DotVp;
//   DotFields(sums, fields, quad) for fields of 4 and 2 bits, with Widen(sums) and kNarrowSums: the
//   sums hold eight products.
//
// Keys form groups of 16 positions (one block each), and groups form runs of 16. Each run has its
// own maximum, sum and output; runs are merged in order, so several items may share them out.
// Probabilities times V scales become 14-bit numbers relative to the largest V scale that the run
// has at this width of V, stored as two 7-bit halves. So both products are integer, and sums within
// a run are exact. A run with several formats is computed one width of V after the other.
//
// At 4 and 2 bits, a field u of V stands for scale * (u - zero). The zero's part is the same for
// all dimensions: the output loses sum(p * scale * zero). A field of K stands for
// mean + scale * (u - zero): q.k loses scale * zero * sum(q) and gains q.mean, which all tokens of
// a group share. The means of a run's 16 groups are laid out like the keys of one group, so that
// q.mean is found for all of them at once.
#include <cstdlib>
#include <cstring>

#include "engine/cpu/attention.h"

// clang-format off
#include "engine/cpu/attention_blocks-inl.h"
#include "engine/cpu/attention_scores-inl.h"
#include "engine/cpu/attention_softmax-inl.h"
#include "engine/cpu/attention_values-inl.h"
// clang-format on

namespace withy::engine::WITHY_TARGET {

// A query that has seen nothing.
inline void ClearQuery(int head_dim, const AttentionRow& row, Query* out) {
  for (int d = 0; d < head_dim; ++d) out->out[d] = 0.0f;
  out->first_run = row.first / kRunKeys;
  out->visible = row.visible;
  out->row = &row;
  out->max = kLowest;
  out->sum = 0.0f;
}

inline void QuantizeQuery(const float* q, int head_dim, float scale, Query* out) {
  RotateHead(q, head_dim, out->rotated);
  out->scale = QuantizeHead(out->rotated, head_dim, out->q) * scale;
  out->softmax_scale = scale;
  int32_t sum = 0;
  for (int d = 0; d < head_dim; ++d) sum += out->q[d];
  out->sum_q = sum;
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

// Adds the groups of a run that the queries will read to s->next, each context once.
inline void AddRun(int queries, int run, AttentionScratch* s) {
  const int begin = run * kRunGroups;
  for (int i = 0; i < queries; ++i) {
    if (i > 0 && SameBlocks(s->query[i - 1], s->query[i])) continue;
    s->next.Add(*s->query[i].row, begin, begin + GroupsSeen(s->query[i], run));
  }
}

// Prepares the products of a query with the key biases of its head.
inline void PrepareBias(const float* q, float scale, const AttentionScratch& s, Query* out) {
  for (int i = 0; i < s.bias_count; ++i) {
    const AttentionKeyBias::Pair& pair = s.bias_pairs[i];
    const float x = q[pair.first] * scale;
    const float y = q[pair.second] * scale;
    out->bias_cos[i] = x * pair.bias_first + y * pair.bias_second;
    out->bias_sin[i] = y * pair.bias_first - x * pair.bias_second;
  }
}

// Number of runs that the queries in scratch see.
inline int RunsSeen(int queries, const AttentionScratch& s) {
  int visible = 0;
  for (int i = 0; i < queries; ++i) {
    visible = visible > s.query[i].visible ? visible : s.query[i].visible;
  }
  return (visible + kRunKeys - 1) / kRunKeys;
}

// The first run that any of the queries in scratch sees.
inline int FirstRun(int queries, const AttentionScratch& s) {
  int first = s.query[0].first_run;
  for (int i = 1; i < queries; ++i) {
    first = first < s.query[i].first_run ? first : s.query[i].first_run;
  }
  return first;
}

// Number of groups of a run that any of the queries sees.
inline int MostGroupsSeen(int queries, int run, const AttentionScratch& s) {
  int most = 0;
  for (int i = 0; i < queries; ++i) {
    const int seen = GroupsSeen(s.query[i], run);
    most = most > seen ? most : seen;
  }
  return most;
}

// How often lines are fetched while a group is computed: for each query's scores, and for each tile
// of values.
inline int FetchesOfGroup(const KvGeometry& g, int queries) {
  const int batches = (queries + kLastValueQueries - 1) / kLastValueQueries;
  return queries + batches * (g.head_dim / (kValueTiles * kTileRows));
}

// Attention of the queries in scratch, all of one KV head, over runs [begin, end). Calls
// fn(run, query, maximum, sum) with the query's output in run_out.
template <typename Fn>
inline void AttendRuns(const KvGeometry& g, int head, int queries, int begin, int end,
                       AttentionScratch* s, Fn fn) {
  s->next.Clear();
  AddRun(queries, begin, s);
  s->next.Fetch(g, head, kFirstLines);
  for (int run = begin; run < end; ++run) {
    const int groups = MostGroupsSeen(queries, run, *s);
    if (groups == 0) continue;  // between the windows of two queries
    FindBlocks(queries, run, s);
    FindMeans(g.head_dim, queries, s);
    if (run > begin) s->next.Clear();
    if (run + 1 < end) AddRun(queries, run + 1, s);
    s->fetch_lines = s->next.Lines(g) / (groups * FetchesOfGroup(g, queries)) + 1;
    for (int j = 0; j < groups; ++j) {
      ForSharedBlock(*s, queries, run, j, [&](const KvBlock& block, int first, int n) {
        s->next.Fetch(g, head, n * s->fetch_lines);
        ScoreGroup(g, block, j, s, first, n);
      });
    }
    if (s->bias_count > 0) {
      for (int i = 0; i < queries; ++i) AddKeyBias(run, s, i);
    }
    if (s->cap > 0.0f) {
      for (int i = 0; i < queries; ++i) CapScores(run, s, i);
    }
    float run_max[kAttentionQueries];
    float run_sum[kAttentionQueries];
    bool live[kAttentionQueries];
    for (int i = 0; i < queries; ++i) live[i] = SoftmaxRun(run, s, i, &run_max[i], &run_sum[i]);
    ValueRun(g, head, run, queries, s);
    for (int i = 0; i < queries; ++i) {
      if (live[i]) fn(run, i, run_max[i], run_sum[i]);
    }
  }
}

// What the output and the densities of a query that has seen its keys are multiplied by. No
// exponent is above 0, so that nothing overflows however large the sink is.
inline float InverseSum(const Query& query, const float* sink) {
  if (sink == nullptr) return 1.0f / query.sum;
  const float max = query.max > *sink ? query.max : *sink;
  const float factor = Exp1(query.max - max);
  return factor / (query.sum * factor + Exp1(*sink - max));
}

// Writes the outputs of the queries in scratch and adds their densities.
inline void FinishQueries(int head_dim, int queries, AttentionScratch* s) {
  for (int i = 0; i < queries; ++i) {
    const Query& query = s->query[i];
    const float inverse = InverseSum(query, s->sink[i]);
    for (int d = 0; d < head_dim; d += 16) {
      Store(Load(query.out + d) * Splat(inverse), query.to + d);
    }
    RotateHead(query.to, head_dim, query.to);
    if (query.density == nullptr) continue;
    const int chunks = (query.visible + kChunkTokens - 1) / kChunkTokens;
    for (int c = 0; c < chunks; ++c) query.density[c] += s->density[i][c] * inverse;
  }
}

// Puts the queries of rows [row_begin, row_end) and a KV head into scratch and calls fn(queries)
// for each kAttentionQueries of them. `density`: room for density_stride floats of each query, or
// nullptr. Without `quantize`, queries can only be merged.
template <typename Fn>
inline void ForQueryBatches(const AttentionArgs& args, int row_begin, int row_end, int head,
                            bool quantize, float* density, ptrdiff_t density_stride,
                            AttentionScratch* s, Fn fn) {
  const KvGeometry& g = args.geometry;
  const int group = args.q_heads / g.kv_heads;
  int n = 0;
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
      Query& query = s->query[n];
      ClearQuery(g.head_dim, args.row[row], &query);
      query.to = args.out + row * args.out_stride + at;
      query.density = row_density;
      if (quantize) {
        const float* q = args.q + row * args.q_stride + at;
        QuantizeQuery(q, g.head_dim, args.scale, &query);
        PrepareBias(q, args.scale, *s, &query);
      }
      s->sink[n] = args.sinks == nullptr ? nullptr : args.sinks + q_head;
      s->density[n] = row_density == nullptr ? nullptr : density + n * density_stride;
      if (++n < kAttentionQueries) continue;
      fn(n);
      n = 0;
    }
  }
  if (n > 0) fn(n);
}

// Where an item that sees only some of the keys leaves its results.
struct AttentionParts {
  float* begin;      // of the item's first query
  ptrdiff_t stride;  // floats between queries
  int runs;          // for which there is room
  int head_dim;

  float* Run(int query, int run) const {
    return begin + query * stride + ptrdiff_t{run} * (head_dim + 16);
  }
  float* Density() const { return begin + ptrdiff_t{runs} * (head_dim + 16); }
};

inline AttentionParts PartsOf(const AttentionArgs& args, int merge_item) {
  const ptrdiff_t stride = AttentionPartStride(args);
  return {args.parts + merge_item * AttentionItemQueries(args) * stride, stride,
          AttentionRuns(args), args.geometry.head_dim};
}

inline void BeginHead(const AttentionArgs& args, int head, AttentionScratch* s) {
  for (int format = 1; format < kKvFormats; ++format) {
    s->at[format] = args.geometry.Offsets(static_cast<KvFormat>(format), head);
  }
  s->cap = args.cap;
  s->bias = args.key_bias;
  s->bias_count = s->bias == nullptr ? 0 : s->bias->counts[head];
  if (s->bias_count > 0) s->bias_pairs = s->bias->pairs + head * kMaxKeyBiasPairs;
}

// Calls fn(row_begin, row_end, head) for an item of AttentionMergeItems().
template <typename Fn>
WITHY_INLINE void WithItem(const AttentionArgs& args, int item, Fn fn) {
  const int step = AttentionRowsPerItem(args);
  const int begin = item / args.geometry.kv_heads * step;
  const int end = begin + step < args.rows ? begin + step : args.rows;
  fn(begin, end, item % args.geometry.kv_heads);
}

// An item that sees all keys. `density`: room for density_stride floats of kAttentionQueries.
inline void AttendWhole(const AttentionArgs& args, int item, AttentionScratch* s, float* density) {
  WithItem(args, item, [&](int row_begin, int row_end, int head) {
    const KvGeometry& g = args.geometry;
    BeginHead(args, head, s);
    ForQueryBatches(args, row_begin, row_end, head, true, density, args.density_stride, s,
                    [&](int queries) {
                      AttendRuns(g, head, queries, FirstRun(queries, *s), RunsSeen(queries, *s), s,
                                 [&](int run, int i, float max, float sum) {
                                   MergeRun(g.head_dim, run, max, sum, s->run_out[i], s, i);
                                 });
                      FinishQueries(g.head_dim, queries, s);
                    });
  });
}

// An item that sees the keys of some runs.
inline void AttendPart(const AttentionArgs& args, int item, int key_item, AttentionScratch* s) {
  WithItem(args, item, [&](int row_begin, int row_end, int head) {
    const KvGeometry& g = args.geometry;
    const AttentionParts parts = PartsOf(args, item);
    BeginHead(args, head, s);
    ForQueryBatches(
        args, row_begin, row_end, head, true, parts.Density(), parts.stride, s, [&](int queries) {
          const int first = FirstRun(queries, *s);
          const int runs = RunsSeen(queries, *s) - first;
          const int begin = first + runs * key_item / args.key_items;
          const int end = first + runs * (key_item + 1) / args.key_items;
          if (begin == end) return;
          AttendRuns(g, head, queries, begin, end, s, [&](int run, int i, float max, float sum) {
            float* part = parts.Run(i, run);
            std::memcpy(part, s->run_out[i], sizeof(float) * static_cast<size_t>(g.head_dim));
            part[g.head_dim] = max;
            part[g.head_dim + 1] = sum;
          });
        });
  });
}

inline void MergeItem(const AttentionArgs& args, int item, AttentionScratch* s) {
  WithItem(args, item, [&](int row_begin, int row_end, int head) {
    const int head_dim = args.geometry.head_dim;
    const AttentionParts parts = PartsOf(args, item);
    ForQueryBatches(
        args, row_begin, row_end, head, false, parts.Density(), parts.stride, s, [&](int queries) {
          for (int i = 0; i < queries; ++i) {
            for (int run = s->query[i].first_run; KeysSeen(s->query[i], run) > 0; ++run) {
              const float* part = parts.Run(i, run);
              MergeRun(head_dim, run, part[head_dim], part[head_dim + 1], part, s, i);
            }
          }
          FinishQueries(head_dim, queries, s);
        });
  });
}

inline void Attention(const AttentionArgs& args, int item_begin, int item_end) {
  AttentionScratch scratch;
  if (args.key_items > 1) {
    for (int item = item_begin; item < item_end; ++item) {
      AttendPart(args, item / args.key_items, item % args.key_items, &scratch);
    }
    return;
  }
  // Not a container: its code is shared with other targets and must not contain this target's
  // instructions.
  float* density = nullptr;
  if (args.density != nullptr) {
    density = static_cast<float*>(
        std::malloc(sizeof(float) * kAttentionQueries * static_cast<size_t>(args.density_stride)));
  }
  for (int item = item_begin; item < item_end; ++item) {
    AttendWhole(args, item, &scratch, density);
  }
  std::free(density);
}

inline void MergeAttention(const AttentionArgs& args, int item_begin, int item_end) {
  AttentionScratch scratch;
  for (int item = item_begin; item < item_end; ++item) MergeItem(args, item, &scratch);
}

}  // namespace withy::engine::WITHY_TARGET
