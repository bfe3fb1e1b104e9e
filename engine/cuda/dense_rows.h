// Which rows of an operation are multiplied as F16 matrices (dense.h). Pure. Neighbours:
// op_products.cc cuts products accordingly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/row_plan.h"

namespace withy::engine::cuda {

// Rows [first, first + rows) of an operation.
struct RowRun {
  int first = 0;
  int rows = 0;
  bool dense = false;
};

// Cuts the rows of an operation, `rows` of the plan in its order. Dense are those of contexts that
// have at least `least_rows` rows without ancestors here: long prompts. So what is computed beside
// a row does not decide how it is computed, and decoded rows and token trees never are.
std::vector<RowRun> SplitRows(const RowPlan& plan, std::span<const int32_t> rows,
                              int32_t least_rows);

// An upper bound of the runs of any rows that keep the plan's order or the batch's.
size_t MostRuns(const RowPlan& plan);

}  // namespace withy::engine::cuda
