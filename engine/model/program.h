// A forward pass as data: typed operations in order, each with its layer, its rows, and the names
// of the weights it reads. Holds no address: an executor (executor.h) resolves names and computes.
// Neighbours: row_plan.h says which rows, emit.h writes programs, cpu/executor.h runs them.
// Source: DESIGN section 4, "A pass is a program".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "engine/model/row_plan.h"
#include "engine/model/weight_name.h"

namespace withy::engine {

// Buffers that operations read and write, one row a token: `x` residual stream [d_model]; `in`
// normed input [d_model]; `q` [q_rows], `k`, `v` [kv_rows]; `attended` [q_rows]; `neurons` [d_ff];
// `a` the inputs of low-rank products [7 * rank]; `out` the rows of the output head [d_model].
enum class OpKind : uint8_t {
  kEmbed,          // x = embedding[token]; rotation angles of the row's position
  kNorm,           // x += pending low-rank output; in = rms_norm(x); a = A * in for gate and up
  kQkv,            // k, v, q = W * in; a = A * in beside them
  kStoreKv,        // q, k, v += B * a; bias, head norm, RoPE; k, v to the row's slot
  kGatherTail,     // keys of tree rows that lie in scattered slots, copied side by side
  kKeepWanted,     // x, q: the rows that want logits, moved to the front
  kAttend,         // attended = attention(q, keys and values the row sees)
  kClearHeads,     // attended = 0 in heads that the row's level has and its context lacks
  kAttentionOut,   // x += W * attended; a = A * attended beside it
  kGateUp,         // neurons = silu(gate * in + B * a) * (up * in + B * a)
  kDown,           // x += W * neurons; a = A * neurons beside it
  kTap,            // x is shown to ModelOptions::layer_tap
  kTakeLogitRows,  // x += pending low-rank output; out = x in the order of the caller's logits
  kHead,           // logits = W * rms_norm(out)
};
inline constexpr int kOpKinds = 14;

// "embed", "norm", "qkv", ...: the name of a kernel span.
std::string_view OpName(OpKind kind);

// Rows [first, first + rows), side by side, that have the LoRA of one level.
struct LowRankRun {
  int32_t first = 0;
  int32_t rows = 0;
  int32_t level = 0;  // index into the model's levels
};

// Runs of a program: Program::Runs() reads them.
struct RunRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

struct Op {
  static constexpr size_t kMaxWeights = 5;

  OpKind kind = OpKind::kEmbed;
  int32_t layer = -1;  // -1: before or behind the layers
  // Rows [0, rows). Behind kKeepWanted of the last layer these are the rows that want logits.
  int32_t rows = 0;
  // kQkv: rows whose queries are computed, [first_query, first_query + queries).
  int32_t first_query = 0;
  int32_t queries = 0;
  // What each row computes; null: all of the layer. Owned by the RowPlan.
  const RowExtents* extents = nullptr;
  // Low-rank outputs that are added first (B; of kStoreKv those of Q, K and V, of kGateUp those of
  // gate and up), and inputs that are computed (A).
  RunRange add = {};
  LoraPart add_part = LoraPart::kAttentionOut;
  int32_t add_layer = -1;
  RunRange lower = {};
  LoraPart lower_part = LoraPart::kAttentionIn;
  // Products in the order in which they are computed, or the vectors that are applied.
  std::array<WeightName, kMaxWeights> weights = {};
  uint8_t weight_count = 0;

  std::span<const WeightName> Weights() const {
    return std::span<const WeightName>(weights).first(weight_count);
  }
  // Whether the operation reads this weight.
  bool Reads(WeightRole role) const {
    for (const WeightName& name : Weights()) {
      if (name.role == role) return true;
    }
    return false;
  }
};

// One piece of a batch. Valid as long as the RowPlan that it was written for.
struct Program {
  std::vector<Op> ops;
  std::vector<LowRankRun> runs;
  std::vector<int32_t> layer_end;  // [layer]: operations up to the layer's end, the head included
  bool low_rank = false;           // some row may have LoRA

  std::span<const LowRankRun> Runs(const RunRange& range) const {
    return std::span(runs).subspan(range.first, range.count);
  }
};

}  // namespace withy::engine
