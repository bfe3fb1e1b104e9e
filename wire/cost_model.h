// What a worker says of its model's speed, as policy/ takes it. Neighbours: worker_cost.h writes
// it.
#pragma once

#include <vector>

#include "policy/board/cost_parameters.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::wire {

// Of the full model.
policy::CostParameters CostFromWire(const v1::CostModel& cost);
// Of every level, ascending. Empty: the worker states none.
std::vector<policy::LevelCost> LevelsFromWire(const v1::CostModel& cost);

}  // namespace withy::wire
