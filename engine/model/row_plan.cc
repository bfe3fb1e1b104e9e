#include "engine/model/row_plan.h"

#include <algorithm>

namespace withy::engine {

void RowExtents::Clear() {
  heads.clear();
  q_rows.clear();
  kv_rows.clear();
  neurons.clear();
}

void RowPlan::Plan(const Batch& batch, const ModelFacts& facts, int32_t begin, int32_t end,
                   int32_t first_logits) {
  layers_ = facts.shape.layers;
  last_kv_layer_ = facts.shape.kv_layers() - 1;
  hidden_ = batch.hidden;
  PlanPiece(batch, facts.full_level(), begin, end, first_logits, &rows_);
  feature_layers_ = {};
  wanted_.clear();
  tail_blocks_ = 0;
  first_logits_row_ = first_logits;
  for (int32_t i = 0; i < count(); ++i) {
    if (row(i).logits_row >= 0) wanted_.push_back(i);
    tail_blocks_ += row(i).tail_blocks;
    if (!row(i).row->features.empty()) feature_layers_ = batch.feature_layers;
  }
  PlanExtents(facts);
  PlanShares(facts);
}

void RowPlan::PlanExtents(const ModelFacts& facts) {
  const ModelShape& s = facts.shape;
  const int32_t full = facts.full_level();
  uniform_ = std::all_of(rows_.begin(), rows_.end(), [&](const PlannedRow& planned) {
    return planned.level == full && (planned.attention_level == full || !s.cuts_kv_heads());
  });
  narrowed_ = false;
  if (uniform_) return;
  const auto add = [&](RowExtents* to, int32_t layer, const PlannedRow& planned) {
    const LayerExtent& extent = facts.Extent(planned.level, layer);
    // K and V of an earlier layer have as many heads at every level that computes this one.
    const bool limited = s.cuts_kv_heads() && s.KvSourceOf(layer) == layer;
    const int32_t heads =
        limited ? facts.Extent(planned.attention_level, layer).heads : extent.heads;
    narrowed_ = narrowed_ || heads < extent.heads;
    to->heads.push_back(heads);
    to->q_rows.push_back(extent.heads * s.head_dim);
    to->kv_rows.push_back(s.kv_heads_of(extent.heads) * s.head_dim);
    to->neurons.push_back(extent.neurons);
  };
  extents_.resize(static_cast<size_t>(layers_));
  for (int32_t layer = 0; layer < layers_; ++layer) {
    RowExtents& extents = extents_[static_cast<size_t>(layer)];
    extents.Clear();
    for (const PlannedRow& planned : rows_) add(&extents, layer, planned);
  }
  wanted_extents_.resize(static_cast<size_t>(layers_));
  sharing_rows_.assign(static_cast<size_t>(layers_), 0);
  for (int32_t layer = last_kv_layer_; layer < layers_; ++layer) {
    RowExtents& extents = wanted_extents_[static_cast<size_t>(layer)];
    extents.Clear();
    for (const int32_t i : wanted_) {
      add(&extents, layer, row(i));
      const bool computes = facts.Extent(row(i).level, layer) != LayerExtent{};
      sharing_rows_[static_cast<size_t>(layer)] += computes ? 1 : 0;
    }
  }
}

void RowPlan::PlanShares(const ModelFacts& facts) {
  constexpr double kNorms = 2;  // norms of a layer; all work here is in units of d_model
  const ModelShape& s = facts.shape;
  const double head = hidden_ ? 0 : s.vocab_size;
  std::vector<double> rows(facts.levels.size());
  std::vector<double> wanted(facts.levels.size());
  for (const PlannedRow& planned : rows_) ++rows[static_cast<size_t>(planned.level)];
  for (const int32_t i : wanted_) ++wanted[static_cast<size_t>(row(i).level)];
  share_before_.assign(1, 0);
  for (int32_t layer = 0; layer < layers_; ++layer) {
    double work = share_before_.back();
    for (size_t level = 0; level < facts.levels.size(); ++level) {
      if (rows[level] == 0) continue;
      const LayerExtent& extent = facts.Extent(static_cast<int32_t>(level), layer);
      const bool own_kv = s.KvSourceOf(layer) == layer;
      const double all_kv = 2.0 * s.head_dim * s.kv_heads_of(extent.heads);
      const double kv = own_kv ? all_kv : 0;
      const double rest = LayerParameters(s, extent) - all_kv + (IsLast(layer) ? head : 0);
      const double before = own_kv ? rows[level] : wanted[level];
      const double after = OnlyWantedAfterKv(layer) ? wanted[level] : rows[level];
      work += before * (kv + kNorms) + after * rest;
    }
    share_before_.push_back(work);
  }
  for (double& share : share_before_) share /= share_before_.back();
}

bool RowPlan::KeepsInputOf(int32_t layer) const {
  return std::find(feature_layers_.begin(), feature_layers_.end(), layer) != feature_layers_.end();
}

bool RowPlan::ComputesAttention(int32_t layer) const {
  return uniform_ || ExtentsAfterKv(layer)->q_rows.front() > 0;
}

bool RowPlan::ComputesMlp(int32_t layer) const {
  return uniform_ || ExtentsAfterKv(layer)->neurons.front() > 0;
}

double RowPlan::ShareDone(double layers) const {
  const auto whole = static_cast<size_t>(layers);
  const double share = share_before_[whole];
  if (whole + 1 >= share_before_.size()) return share;
  return share + (share_before_[whole + 1] - share) * (layers - static_cast<double>(whole));
}

}  // namespace withy::engine
