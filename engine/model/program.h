// A forward pass as data: typed operations in order, each with its layer, its rows, and the names
// of the weights that it reads. Holds no address: an executor (executor.h) resolves names and
// computes. Neighbours: row_plan.h plans the rows, emit.h writes programs, cpu/executor.h runs
// them.
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
#include "engine/weights/weight_plan.h"

namespace withy::engine {

// Operations read and write these buffers, one row per token: `x` residual stream [d_model]; `in`
// normalised input [d_model]; `q` [q_rows]; `k`, `v` [kv_rows]; `attended` [q_rows]; `neurons`
// [d_ff], with experts those of each expert that the row has chosen; `branch` what attention or MLP
// give, where it does not enter `x` as it is [d_model]; `a` = A * inputs of the LoRA products [7 *
// rank]; `out` input of the output head [d_model]. With copies of the stream, `x` is the first one,
// and `streams` [streams * d_model] has the others behind the prediction of the first; `laurel`
// what the branch beside attention gives [d_model]; `layer_inputs` the inputs of all layers [layers
// * layer_width].
enum class OpKind : uint8_t {
  kEmbed,         // x = scale * embedding[token], + positions[position] if the model has them;
                  // RoPE angles of the row's position
  kLayerInputs,   // layer_inputs = (norm(W * x / sqrt(d_model)) + sqrt(layer_width) * row of the
                  // token) / sqrt(2), normed layer by layer
  kSpread,        // streams 1.. = W * x, each scaled to the size of x
  kPredict,       // streams += P * streams, x = the first; P = W * tanh(router * norm(x) / d_model)
  kNorm,          // x += pending B * a; in = norm(x), or x without a norm; a = A * in for gate and
                  // up. A norm with a bias is LayerNorm, others are RMS norms
  kQkv,           // k, v, q = W * in; a = A * in
  kLaurel,        // laurel = norm(R * L * in) + in
  kStoreKv,       // q, k, v += B * a; bias, norms, RoPE; writes k, v to the row's slot
  kGatherTail,    // copies K and V that tree rows see in scattered slots into scratch blocks
  kKeepWanted,    // moves x and q of the rows that want logits to the front, and what else of
                  // them the rest of the program reads
  kAttend,        // attended = attention(q, keys and values that the row sees)
  kClearHeads,    // attended = 0 in heads that the row's level has and its context lacks
  kAttentionOut,  // x += W * attended + bias, or branch = it; a = A * attended
  kGateUp,        // neurons = activation(gate * in + B * a) * (up * in + B * a); without a gate
                  // activation(up * in + bias)
  kDown,          // x += W * neurons + bias, or branch = it; a = A * neurons
  kRoute,         // chooses the experts of each row and their weights, by router * in + bias
  kExpertGateUp,  // neurons = activation(gate * in + bias) * (up * in + bias), or kClampedSilu of
                  // both, of each expert that the row chose
  kExpertDown,    // x += sum of weight * (W * neurons + bias) over the row's experts, best
                  // first, or branch = it
  kAddBranch,     // x += scale * rms_norm(branch), or of branch without a norm; then, with laurel,
                  // x = (x + laurel) / sqrt(2)
  kCorrect,       // streams += c * (x - the first), x = the first; c = 1 + W * tanh(router *
                  // norm(x) / d_model); in = scale * x
  kAddLayerInput,  // streams 1.. += norm(W * (activation(gate * in) * the layer's input))
  kMerge,          // x = mean of x and W * streams 1.., each scaled to the size of x
  kKeepFeatures,   // copies x + pending B * a to the Row::features of the rows that have them
  kTap,            // passes x + pending B * a to ModelHooks::layer_tap
  kTakeLogitRows,  // x += pending B * a; out = x in the order of the caller's logits
  kHead,           // logits = W * norm(out)
  kFinishLogits,   // logits = soft-cap of scale * logits
  kHidden,         // instead of the three before: norm(x + pending B * a) in the order of the
                   // caller's rows
};
inline constexpr int kOpKinds = 28;

// Name for a kernel span: "embed", "norm", "qkv", ...
std::string_view OpName(OpKind kind);

// Rows [first, first + rows), which all use the LoRA of one level.
struct LowRankRun {
  int32_t first = 0;
  int32_t rows = 0;
  int32_t level = 0;  // index into the model's levels
};

// Range of Program::runs; Program::Runs() resolves it.
struct RunRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

struct Op {
  static constexpr size_t kMaxWeights = 5;

  OpKind kind = OpKind::kEmbed;
  int32_t layer = -1;  // -1: before or after the layers
  // Rows [0, rows). After kKeepWanted these are the rows that want logits.
  int32_t rows = 0;
  // kQkv: rows whose queries are computed, [first_query, first_query + queries).
  int32_t first_query = 0;
  int32_t queries = 0;
  // kEmbed, kAddBranch, kFinishLogits: the factor. kAttend: of q.k.
  float scale = 1.0f;
  // kAttend, of scores; kFinishLogits: x becomes cap * tanh(x / cap). 0: it stays.
  float cap = 0.0f;
  // kAttend: positions that a row sees, the last its own; 0: all.
  int32_t window = 0;
  // kStoreKv, kGatherTail, kAttend: layer whose KV blocks are written or read. kStoreKv of another
  // one writes none: only q is made.
  int32_t kv_layer = -1;
  // kGateUp: ModelShape::gate_cuts.
  float gate_cut = ModelShape::kNoCut;
  bool joins_laurel = false;  // kAddBranch
  // kStoreKv: which of the model's frequencies RoPE has; ModelShape::kNoRope: there is no RoPE.
  int8_t rope = 0;
  // kStoreKv: norms are of whole q and k, not of heads.
  bool whole_norms = false;
  // kAttentionOut, kDown, kExpertDown: the product goes to `branch`.
  bool to_branch = false;
  Activation activation = Activation::kSilu;  // kGateUp, kExpertGateUp, kAddLayerInput
  // What each row computes; null: all of the layer. Owned by the RowPlan.
  const RowExtents* extents = nullptr;
  // LoRA of the rows in `add` and `lower`. `add`: B * a is added first; kStoreKv adds B of Q, K and
  // V, kGateUp adds B of gate and up. `lower`: a = A * input is computed.
  RunRange add = {};
  LoraPart add_part = LoraPart::kAttentionOut;
  int32_t add_layer = -1;
  RunRange lower = {};
  LoraPart lower_part = LoraPart::kAttentionIn;
  // Matrices in the order in which they are multiplied, then their biases; kAttend: sinks; or the
  // vectors that are applied, a norm before its bias. kHead: the norm, then the matrix.
  std::array<WeightName, kMaxWeights> weights = {};
  uint8_t weight_count = 0;

  std::span<const WeightName> Weights() const {
    return std::span<const WeightName>(weights).first(weight_count);
  }
  // The stage of streamed weights (weights/weight_plan.h) that the operation reads; -1: none.
  int32_t Stage() const;
  // The weight of this role, or nullptr: the operation reads none.
  const WeightName* Find(WeightRole role) const {
    for (const WeightName& name : Weights()) {
      if (name.role == role) return &name;
    }
    return nullptr;
  }
  // Whether the operation reads this weight.
  bool Reads(WeightRole role) const { return Find(role) != nullptr; }
};

// Program of one piece of a batch. Valid as long as the RowPlan it was written for.
struct Program {
  std::vector<Op> ops;
  std::vector<LowRankRun> runs;
  // [layer]: number of operations up to the end of the layer; the last layer's count the head.
  std::vector<int32_t> layer_end;
  bool low_rank = false;  // true if some row may use LoRA

  std::span<const LowRankRun> Runs(const RunRange& range) const {
    return std::span(runs).subspan(range.first, range.count);
  }
};

}  // namespace withy::engine
