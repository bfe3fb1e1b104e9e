// Writes the program of one piece of a batch: llama, qwen2 and qwen3. Neighbours: row_plan.h is its
// input, program.h its output. Pure.
#pragma once

#include "engine/model/facts.h"
#include "engine/model/program.h"
#include "engine/model/row_plan.h"

namespace withy::engine {

// `tap`: an operation that shows the residual stream follows each layer. `program` is overwritten;
// it refers to extents of `plan`.
void Emit(const RowPlan& plan, const ModelFacts& facts, bool tap, Program* program);

}  // namespace withy::engine
