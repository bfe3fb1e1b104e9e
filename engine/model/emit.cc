#include "engine/model/emit.h"

#include <cmath>

namespace withy::engine {
namespace {

using Role = WeightRole;

class Emitter {
 public:
  Emitter(const RowPlan& plan, const ModelFacts& facts, bool tap, Program* program)
      : plan_(plan), facts_(facts), tap_(tap), program_(*program) {}

  void Run() {
    program_.ops.clear();
    program_.runs.clear();
    program_.layer_end.clear();
    program_.low_rank = !plan_.uniform() && facts_.lora_rank > 0;
    Op& embed = Add(OpKind::kEmbed, -1, plan_.count(), {Role::kEmbedding});
    embed.scale = facts_.shape.embedding_scale;
    if (facts_.shape.learned_positions) Name(Role::kPositions, &embed);
    BeforeLayers();
    const int32_t layers = facts_.shape.layers;
    for (int32_t layer = 0; layer < layers; ++layer) {
      Layer(layer);
      program_.layer_end.push_back(static_cast<int32_t>(program_.ops.size()));
    }
  }

 private:
  // LoRA output B * a of the previous product that the residual stream does not contain yet.
  struct Pending {
    RunRange runs = {};
    LoraPart part = LoraPart::kDown;
    int32_t layer = -1;
  };

  void BeforeLayers() {
    const ModelShape& s = facts_.shape;
    if (s.has_layer_inputs()) {
      Add(OpKind::kLayerInputs, -1, plan_.count(),
          {Role::kLayerProjection, Role::kLayerProjectionNorm, Role::kLayerEmbedding});
    }
    if (s.streams > 1) Add(OpKind::kSpread, -1, plan_.count(), {Role::kSpread});
  }

  void Layer(int32_t layer) {
    const ModelShape& s = facts_.shape;
    const bool last = layer + 1 == s.layers;
    if (plan_.RowsBeforeKv(layer) > 0) Compute(layer);
    if (plan_.KeepsInputOf(layer + 1)) {
      AddPending(&Add(OpKind::kKeepFeatures, layer, plan_.count(), {}));
    }
    const auto wanted = static_cast<int32_t>(plan_.wanted().size());
    if (last && wanted > 0 && s.streams > 1) Add(OpKind::kMerge, -1, wanted, {Role::kMerge});
    const int32_t tapped = last ? wanted : plan_.RowsAfterKv(layer);
    if (tap_ && tapped > 0) AddPending(&Add(OpKind::kTap, layer, tapped, {}));
    if (last && wanted > 0) Logits(wanted);
  }

  void Compute(int32_t layer) {
    const ModelShape& s = facts_.shape;
    const int32_t begin_rows = plan_.RowsBeforeKv(layer);
    if (s.streams > 1) {
      Add(OpKind::kPredict, layer, begin_rows,
          {Role::kStreamRouterNorm, Role::kStreamRouter, Role::kStreamPredict});
    }
    Qkv(layer);
    if (s.laurel_rank > 0) {
      Add(OpKind::kLaurel, layer, begin_rows,
          {Role::kLaurelLeft, Role::kLaurelRight, Role::kLaurelNorm, Role::kAttnNorm});
    }
    StoreKv(layer);
    const int32_t rows = plan_.RowsAfterKv(layer);
    if (rows == 0) return;
    if (plan_.KeepsWanted(layer)) Add(OpKind::kKeepWanted, layer, rows, {});
    pending_ = {};
    if (plan_.ComputesAttention(layer)) Attention(layer, rows);
    if (plan_.ComputesMlp(layer)) FeedForward(layer, rows);
    AfterMlp(layer, rows);
  }

  void AfterMlp(int32_t layer, int32_t rows) {
    const ModelShape& s = facts_.shape;
    if (s.streams > 1) {
      Add(OpKind::kCorrect, layer, rows,
          {Role::kStreamRouterNorm, Role::kStreamRouter, Role::kStreamCorrect, Role::kStreamScale});
    }
    if (!s.has_layer_inputs()) return;
    Op& op = Add(OpKind::kAddLayerInput, layer, rows,
                 {Role::kLayerGate, Role::kLayerOut, Role::kLayerNorm});
    op.activation = s.activation;
  }

  void Qkv(int32_t layer) {
    const int32_t rows = plan_.RowsBeforeKv(layer);
    const bool own_kv = facts_.shape.KvSourceOf(layer) == layer;
    Norm(layer, rows, Role::kAttnNorm, Role::kAttnNormBias);
    Op& op = Add(OpKind::kQkv, layer, rows, {});
    op.extents = plan_.ExtentsBeforeKv(layer);
    op.queries = rows;
    if (own_kv && plan_.OnlyWantedAfterKv(layer)) {
      const auto wanted = plan_.wanted();
      op.first_query = wanted.empty() ? 0 : wanted.front();
      op.queries = wanted.empty() ? 0 : wanted.back() + 1 - op.first_query;
    }
    if (op.queries > 0 && !plan_.ComputesAttention(layer)) op.queries = 0;
    if (own_kv) Name(Role::kK, &op);
    if (own_kv) Name(Role::kV, &op);
    if (op.queries > 0) Name(Role::kQ, &op);
    qkv_runs_ = own_kv ? Runs(
                             layer, true, [&](int32_t i) { return plan_.LevelOf(i); }, rows)
                       : RunsAfterKv(layer, true, rows);
    op.lower = qkv_runs_;
    op.lower_part = LoraPart::kAttentionIn;
  }

  Op& Norm(int32_t layer, int32_t rows, Role role, Role bias) {
    Op& norm = Add(OpKind::kNorm, layer, rows, {});
    if (facts_.shape.pre_norms) Name(role, &norm);
    if (facts_.shape.pre_norms && facts_.shape.layer_norms) Name(bias, &norm);
    AddPending(&norm);
    return norm;
  }

  // Lets attention or MLP, whose last product is `op`, enter the stream otherwise than as it is.
  void AddBranch(Role norm, Op* op) {
    if (!facts_.shape.ChangesBranches()) return;
    op->to_branch = true;
    const int32_t layer = op->layer;
    const int32_t rows = op->rows;
    Op& add = Add(OpKind::kAddBranch, layer, rows, {});
    add.scale = facts_.shape.residual_scale;
    add.joins_laurel = facts_.shape.laurel_rank > 0 && norm == Role::kPostAttnNorm;
    if (facts_.shape.post_norms) Name(norm, &add);
  }

  // Names only the vectors that the model has.
  void StoreKv(int32_t layer) {
    const LayerFacts& facts = facts_.layers[static_cast<size_t>(layer)];
    const int32_t source = facts_.shape.KvSourceOf(layer);
    Op& op = Add(OpKind::kStoreKv, layer, plan_.RowsBeforeKv(layer), {});
    op.kv_layer = source;
    op.extents = plan_.ExtentsBeforeKv(layer);
    op.add = qkv_runs_;
    op.add_part = LoraPart::kQ;
    op.add_layer = layer;
    if (facts.q_bias) Name(Role::kQBias, &op);
    if (facts.k_bias) Name(Role::kKBias, &op);
    if (facts.v_bias) Name(Role::kVBias, &op);
    op.rope = facts_.shape.RopeOf(layer);
    op.whole_norms = facts_.shape.qk_norm == QkNorm::kWhole;
    if (facts_.shape.qk_norm != QkNorm::kNone) {
      Name(Role::kQNorm, &op);
      if (source == layer) Name(Role::kKNorm, &op);
    }
    if (plan_.tail_blocks() == 0) return;
    Add(OpKind::kGatherTail, layer, plan_.count(), {}).kv_layer = source;
  }

  void Attention(int32_t layer, int32_t rows) {
    const RowExtents* extents = plan_.ExtentsAfterKv(layer);
    const ModelShape& s = facts_.shape;
    Op& attend = Add(OpKind::kAttend, layer, rows, {});
    attend.extents = extents;
    attend.kv_layer = s.KvSourceOf(layer);
    attend.scale = s.attention_scale > 0.0f ? s.attention_scale
                                            : 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    attend.cap = s.attention_cap;
    attend.window = s.WindowOf(layer);
    if (s.attention_sinks) Name(Role::kAttnSinks, &attend);
    if (plan_.narrowed()) Add(OpKind::kClearHeads, layer, rows, {}).extents = extents;
    Op& op = Add(OpKind::kAttentionOut, layer, rows, {Role::kOutput});
    if (s.product_biases) Name(Role::kAttnOutputBias, &op);
    op.extents = extents;
    op.lower = RunsAfterKv(layer, true, rows);
    op.lower_part = LoraPart::kAttentionOutIn;
    pending_ = {op.lower, LoraPart::kAttentionOut, layer};
    AddBranch(Role::kPostAttnNorm, &op);
  }

  void FeedForward(int32_t layer, int32_t rows) {
    const RowExtents* extents = plan_.ExtentsAfterKv(layer);
    const RunRange runs = RunsAfterKv(layer, false, rows);
    const ModelShape& s = facts_.shape;
    Op& norm = Norm(layer, rows, Role::kFfnNorm, Role::kFfnNormBias);
    norm.lower = runs;
    norm.lower_part = LoraPart::kFfnIn;
    if (facts_.shape.experts > 0) return Experts(layer, rows);
    Op& gate_up = Add(OpKind::kGateUp, layer, rows, {});
    if (s.gated_mlp) Name(Role::kGate, &gate_up);
    Name(Role::kUp, &gate_up);
    if (s.product_biases) Name(Role::kUpBias, &gate_up);
    gate_up.extents = extents;
    gate_up.activation = s.activation;
    gate_up.gate_cut = s.GateCutOf(layer);
    gate_up.add = runs;
    gate_up.add_part = LoraPart::kGate;
    gate_up.add_layer = layer;
    Op& down = Add(OpKind::kDown, layer, rows, {Role::kDown});
    if (s.product_biases) Name(Role::kDownBias, &down);
    down.extents = extents;
    down.lower = runs;
    down.lower_part = LoraPart::kDownIn;
    pending_ = {runs, LoraPart::kDown, layer};
    AddBranch(Role::kPostFfnNorm, &down);
  }

  // Such models have no levels.
  void Experts(int32_t layer, int32_t rows) {
    const bool biases = facts_.shape.product_biases;
    Op& route = Add(OpKind::kRoute, layer, rows, {Role::kRouter});
    if (biases) Name(Role::kRouterBias, &route);
    Op& gate_up = Add(OpKind::kExpertGateUp, layer, rows, {Role::kGateExperts, Role::kUpExperts});
    gate_up.activation = facts_.shape.activation;
    if (biases) Name(Role::kGateExpertsBias, &gate_up);
    if (biases) Name(Role::kUpExpertsBias, &gate_up);
    Op& down = Add(OpKind::kExpertDown, layer, rows, {Role::kDownExperts});
    if (biases) Name(Role::kDownExpertsBias, &down);
    AddBranch(Role::kPostFfnNorm, &down);
    pending_ = {};
  }

  void Logits(int32_t rows) {
    const auto add_norm_bias = [this](Op* op) {
      if (facts_.shape.layer_norms) Name(Role::kOutputNormBias, op);
    };
    if (plan_.hidden()) {
      Op& hidden = Add(OpKind::kHidden, -1, rows, {Role::kOutputNorm});
      add_norm_bias(&hidden);
      return AddPending(&hidden);
    }
    AddPending(&Add(OpKind::kTakeLogitRows, -1, rows, {}));
    Op& head = Add(OpKind::kHead, -1, rows, {Role::kOutputNorm, Role::kHead});
    add_norm_bias(&head);
    const ModelShape& s = facts_.shape;
    if (s.logit_scale == 1.0f && s.logit_cap == 0.0f) return;
    Op& finish = Add(OpKind::kFinishLogits, -1, rows, {});
    finish.scale = s.logit_scale;
    finish.cap = s.logit_cap;
  }

  // Lets `op` add the pending LoRA output. Its inputs `a` stay valid until the next product of the
  // same kind, so that it can be added to more than one copy of the stream.
  void AddPending(Op* op) {
    op->add = pending_.runs;
    op->add_part = pending_.part;
    op->add_layer = pending_.layer;
  }

  Op& Add(OpKind kind, int32_t layer, int32_t rows, std::initializer_list<Role> weights) {
    Op& op = program_.ops.emplace_back();
    op.kind = kind;
    op.layer = layer;
    op.rows = rows;
    for (const Role role : weights) Name(role, &op);
    return op;
  }

  static void Name(Role role, Op* op) { op->weights[op->weight_count++] = {role, op->layer}; }

  template <typename LevelOf>
  RunRange Runs(int32_t layer, bool attention, LevelOf level_of, int32_t rows) {
    RunRange range{static_cast<uint32_t>(program_.runs.size()), 0};
    if (plan_.uniform() || facts_.lora_rank == 0) return range;
    for (int32_t i = 0; i < rows;) {
      const int32_t level = level_of(i);
      int32_t n = 1;
      while (i + n < rows && level_of(i + n) == level) ++n;
      if (facts_.HasLora(level, layer, attention)) {
        program_.runs.push_back({i, n, level});
        ++range.count;
      }
      i += n;
    }
    return range;
  }

  RunRange RunsAfterKv(int32_t layer, bool attention, int32_t rows) {
    return Runs(
        layer, attention, [&](int32_t i) { return plan_.LevelAfterKv(layer, i); }, rows);
  }

  const RowPlan& plan_;
  const ModelFacts& facts_;
  const bool tap_;
  Program& program_;
  RunRange qkv_runs_;
  Pending pending_;
};

}  // namespace

void Emit(const RowPlan& plan, const ModelFacts& facts, bool tap, Program* program) {
  Emitter(plan, facts, tap, program).Run();
}

}  // namespace withy::engine
