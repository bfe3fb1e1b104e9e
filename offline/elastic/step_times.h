// How long the steps of an elasticizing run take on this machine with this model: each kind is done
// once at the full level and once at a low one. Neighbours: schedule.h computes with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "offline/elastic/batches.h"
#include "offline/elastic/network.h"
#include "offline/elastic/schedule.h"

namespace withy::elastic {

// `threads`: as many as the run will have. `progress`: (measurements done, all), before each.
// Changes nothing of the network.
StepTimes MeasureSteps(const Network& network, const std::vector<Batch>& calibration,
                       const std::vector<Batch>& text, int64_t rank, int threads,
                       const Clock& clock, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace withy::elastic
