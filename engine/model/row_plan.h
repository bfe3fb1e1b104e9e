// Plans what the rows of one piece of a batch compute in each layer: their order, the extents of
// their levels, and which rows continue after the last layer's K and V. Neighbours: rows.h orders
// rows and finds tree tails, emit.h writes the program. Pure: touches neither KV nor weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/facts.h"
#include "engine/model/rows.h"

namespace withy::engine {

// What each row computes of one layer. Rows are sorted so that no extent grows from row to row.
struct RowExtents {
  // Query heads that attend. Fewer than q_rows / head_dim if the row's context has fewer heads.
  std::vector<int32_t> heads;
  std::vector<int32_t> q_rows;   // query heads * head_dim
  std::vector<int32_t> kv_rows;  // KV heads * head_dim
  std::vector<int32_t> neurons;

  void Clear();
};

// The plan of one piece. Plan() replaces it and reuses its buffers.
class RowPlan {
 public:
  // Plans rows [begin, end) of a checked batch, which must outlive the plan. `first_logits`: number
  // of rows before `begin` that want logits.
  void Plan(const Batch& batch, const ModelFacts& facts, int32_t begin, int32_t end,
            int32_t first_logits);

  int32_t count() const { return static_cast<int32_t>(rows_.size()); }
  const PlannedRow& row(int32_t i) const { return rows_[static_cast<size_t>(i)]; }
  std::span<const PlannedRow> rows() const { return rows_; }
  // Indices of the rows that want logits ("wanted rows"), ascending.
  std::span<const int32_t> wanted() const { return wanted_; }
  // Scratch blocks that the tree rows need in each layer.
  int32_t tail_blocks() const { return tail_blocks_; }
  // First row of the caller's logits that this piece writes.
  int32_t first_logits_row() const { return first_logits_row_; }
  // As Batch::hidden.
  bool hidden() const { return hidden_; }
  // Whether some row gets what enters a layer (Row::features).
  bool KeepsInputOf(int32_t layer) const;
  // True if every row computes all of every layer.
  bool uniform() const { return uniform_; }
  // True if some row attends with fewer heads than its level has.
  bool narrowed() const { return narrowed_; }

  // Number of rows that begin a layer, and of those that continue once its K and V are stored. Once
  // the last K and V are, only wanted rows continue: in the last layer, and in all layers that
  // share K and V of earlier ones. Of the latter, those that a level leaves out have no rows of it.
  int32_t RowsBeforeKv(int32_t layer) const {
    return layer > last_kv_layer_ ? RowsAfterKv(layer) : count();
  }
  int32_t RowsAfterKv(int32_t layer) const {
    if (!OnlyWantedAfterKv(layer)) return count();
    if (layer == last_kv_layer_ || uniform_) return static_cast<int32_t>(wanted_.size());
    return sharing_rows_[static_cast<size_t>(layer)];
  }
  bool OnlyWantedAfterKv(int32_t layer) const { return layer >= last_kv_layer_; }
  // Whether rows end with a layer's K and V.
  bool KeepsWanted(int32_t layer) const {
    return layer == last_kv_layer_ && RowsAfterKv(layer) < count();
  }
  // Null if uniform().
  const RowExtents* Extents(int32_t layer) const {
    return uniform_ ? nullptr : &extents_[static_cast<size_t>(layer)];
  }
  const RowExtents* ExtentsAfterKv(int32_t layer) const {
    if (uniform_) return nullptr;
    return OnlyWantedAfterKv(layer) ? &wanted_extents_[static_cast<size_t>(layer)] : Extents(layer);
  }
  // Those of the rows that begin the layer.
  const RowExtents* ExtentsBeforeKv(int32_t layer) const {
    return layer > last_kv_layer_ ? ExtentsAfterKv(layer) : Extents(layer);
  }
  // Level of row i. After the last K and V, i counts wanted rows only.
  int32_t LevelOf(int32_t i) const { return row(i).level; }
  int32_t LevelAfterKv(int32_t layer, int32_t i) const {
    return row(OnlyWantedAfterKv(layer) ? wanted_[static_cast<size_t>(i)] : i).level;
  }
  // Whether some row computes a layer's attention or its MLP; a level may leave either out.
  bool ComputesAttention(int32_t layer) const;
  bool ComputesMlp(int32_t layer) const;

  // Share of the piece's work, 0 .. 1, that its first `layers` layers make up. A fraction of a
  // layer counts in proportion.
  double ShareDone(double layers) const;

 private:
  bool IsLast(int32_t layer) const { return layer + 1 == layers_; }
  void PlanExtents(const ModelFacts& facts);
  void PlanShares(const ModelFacts& facts);

  int32_t layers_ = 0;
  int32_t last_kv_layer_ = 0;
  std::vector<PlannedRow> rows_;
  std::vector<int32_t> wanted_;
  int32_t tail_blocks_ = 0;
  int32_t first_logits_row_ = 0;
  bool hidden_ = false;
  std::span<const int32_t> feature_layers_;  // of the batch; empty: no row has features
  bool uniform_ = true;
  bool narrowed_ = false;
  std::vector<RowExtents> extents_;         // [layer]
  std::vector<RowExtents> wanted_extents_;  // [layer], of the wanted rows, where only they continue
  std::vector<int32_t> sharing_rows_;       // [layer], wanted rows that compute it
  std::vector<double> share_before_;        // [layer + 1]
};

}  // namespace withy::engine
