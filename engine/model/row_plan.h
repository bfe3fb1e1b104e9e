// What the rows of one piece of a batch compute, layer by layer: their order, extents of their
// levels, which go on behind the last layer's K and V. Neighbours: rows.h orders rows and finds
// tree tails, emit.h writes the program. Pure: touches no KV, no weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/facts.h"
#include "engine/model/rows.h"

namespace withy::engine {

// What each row computes of one layer; rows are sorted so that no extent grows from row to row.
struct RowExtents {
  std::vector<int32_t>
      heads;  // heads that attend; fewer than q_rows has where the context has fewer
  std::vector<int32_t> q_rows;   // query heads * head_dim
  std::vector<int32_t> kv_rows;  // KV heads * head_dim
  std::vector<int32_t> neurons;

  void Clear();
};

// One piece. Kept for its buffers: Plan() begins anew.
class RowPlan {
 public:
  // Plans rows [begin, end) of a checked batch. `first_logits`: rows before `begin` that want
  // logits.
  void Plan(const Batch& batch, const ModelFacts& facts, int32_t begin, int32_t end,
            int32_t first_logits);

  int32_t count() const { return static_cast<int32_t>(rows_.size()); }
  const PlannedRow& row(int32_t i) const { return rows_[static_cast<size_t>(i)]; }
  std::span<const PlannedRow> rows() const { return rows_; }
  // Rows that want logits, ascending.
  std::span<const int32_t> wanted() const { return wanted_; }
  // Scratch blocks that tree rows need a layer.
  int32_t tail_blocks() const { return tail_blocks_; }
  // The first row of the caller's logits that this piece writes.
  int32_t first_logits_row() const { return first_logits_row_; }
  // Every row computes the whole of every layer.
  bool uniform() const { return uniform_; }
  // Some row attends with fewer heads than its level has.
  bool narrowed() const { return narrowed_; }
  // Some row is of a level below the full one.
  bool lowered() const { return !uniform_; }

  // Rows that go on once a layer's K and V are stored: of the last layer, those that want logits.
  int32_t RowsAfterKv(int32_t layer) const {
    return IsLast(layer) ? static_cast<int32_t>(wanted_.size()) : count();
  }
  // Null where uniform.
  const RowExtents* Extents(int32_t layer) const {
    return uniform_ ? nullptr : &extents_[static_cast<size_t>(layer)];
  }
  const RowExtents* ExtentsAfterKv(int32_t layer) const {
    return uniform_ ? nullptr : IsLast(layer) ? &wanted_extents_ : Extents(layer);
  }
  // Level of row i in the numbering before and behind the last layer's K and V.
  int32_t LevelOf(int32_t i) const { return row(i).level; }
  int32_t LevelAfterKv(int32_t layer, int32_t i) const {
    return row(IsLast(layer) ? wanted_[static_cast<size_t>(i)] : i).level;
  }
  // Whether some row goes through a layer's attention, its MLP: levels may leave them out.
  bool ComputesAttention(int32_t layer) const;
  bool ComputesMlp(int32_t layer) const;

  // Share of the piece's work that is done with the first `layers` layers, 0 .. 1; fractions count
  // in proportion.
  double ShareDone(double layers) const;

 private:
  bool IsLast(int32_t layer) const { return layer + 1 == layers_; }
  void PlanExtents(const ModelFacts& facts);
  void PlanShares(const ModelFacts& facts);

  int32_t layers_ = 0;
  std::vector<PlannedRow> rows_;
  std::vector<int32_t> wanted_;
  int32_t tail_blocks_ = 0;
  int32_t first_logits_row_ = 0;
  bool uniform_ = true;
  bool narrowed_ = false;
  std::vector<RowExtents> extents_;   // [layer]
  RowExtents wanted_extents_;         // of the last layer, for wanted rows
  std::vector<double> share_before_;  // [layer + 1]
};

}  // namespace withy::engine
