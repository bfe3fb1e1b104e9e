// Writes the program of one piece of a batch. What the architecture adds or leaves out stands in
// the shape. Neighbours: row_plan.h is its input, program.h its output. Pure.
#pragma once

#include "engine/model/facts.h"
#include "engine/model/program.h"
#include "engine/model/row_plan.h"

namespace withy::engine {

// Overwrites `program`, which then refers to extents of `plan`. `tap`: add a kTap operation after
// each layer.
void Emit(const RowPlan& plan, const ModelFacts& facts, bool tap, Program* program);

}  // namespace withy::engine
