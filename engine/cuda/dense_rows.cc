#include "engine/cuda/dense_rows.h"

#include <algorithm>
#include <map>

namespace withy::engine::cuda {

std::vector<RowRun> SplitRows(const RowPlan& plan, std::span<const int32_t> rows,
                              int32_t least_rows) {
  std::map<int32_t, int32_t> plain;  // rows without ancestors, by context
  for (const int32_t i : rows) {
    const engine::Row& row = *plan.row(i).row;
    if (row.ancestor_slots.empty()) ++plain[row.context];
  }
  std::vector<RowRun> runs;
  for (const int32_t i : rows) {
    const engine::Row& row = *plan.row(i).row;
    const bool dense = row.ancestor_slots.empty() && plain[row.context] >= least_rows;
    if (runs.empty() || runs.back().dense != dense) {
      const int first = runs.empty() ? 0 : runs.back().first + runs.back().rows;
      runs.push_back({first, 0, dense});
    }
    ++runs.back().rows;
  }
  return runs;
}

size_t MostRuns(const RowPlan& plan) {
  // A run ends where the context changes, or whether a row has ancestors.
  const auto changes = [](std::span<const PlannedRow* const> rows) {
    size_t count = 0;
    for (size_t i = 1; i < rows.size(); ++i) {
      const engine::Row& before = *rows[i - 1]->row;
      const engine::Row& row = *rows[i]->row;
      const bool same = before.context == row.context &&
                        before.ancestor_slots.empty() == row.ancestor_slots.empty();
      count += same ? 0 : 1;
    }
    return count;
  };
  std::vector<const PlannedRow*> rows;
  for (const PlannedRow& row : plan.rows()) rows.push_back(&row);
  const size_t planned = changes(rows);
  std::sort(rows.begin(), rows.end(),
            [](const PlannedRow* a, const PlannedRow* b) { return a->batch_row < b->batch_row; });
  return std::max(planned, changes(rows)) + 1;
}

}  // namespace withy::engine::cuda
