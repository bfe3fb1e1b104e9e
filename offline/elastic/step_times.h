// Measures the steps of an elasticizing run on this machine with this model: each kind once at the
// full level and once at a low one. Neighbour: schedule.h computes with the result.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "offline/elastic/network.h"
#include "offline/elastic/schedule.h"
#include "offline/elastic/text/batches.h"

namespace withy::elastic {

// `threads`: number of threads of the run. `progress`: (measurements done, all), before each one.
// Does not change the network.
StepTimes MeasureSteps(const Network& network, const std::vector<Batch>& text, int64_t rank,
                       int threads, const Clock& clock,
                       const std::function<void(int64_t, int64_t)>& progress);

}  // namespace withy::elastic
