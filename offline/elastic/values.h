// Many numbers that do not depend on each other, such as losses of batches: computed side by side,
// kept as they come. Neighbours: job.cc, trial.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "offline/elastic/work.h"
#include "offline/train/workers.h"

namespace withy::elastic {

// value(i) of every i in [0, count); those that the keeper's state has are not computed again.
// `cost_s`: of one, for the keeper. Errors: from saving.
absl::StatusOr<std::vector<double>> ComputeValues(int64_t count,
                                                  const std::function<double(int64_t)>& value,
                                                  const train::Workers& workers, double cost_s,
                                                  Keeper keeper);

// Mean of values in their order.
double Mean(std::span<const double> values);

}  // namespace withy::elastic
