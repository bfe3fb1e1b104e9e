// Computes many independent numbers, such as losses of batches, in parallel and saves them as they
// arrive. Neighbours: job.cc, trial.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "offline/elastic/work.h"
#include "offline/train/workers.h"

namespace withy::elastic {

// Returns value(i) for every i in [0, count); values in the saved state are not computed again.
// `cost_s`: cost of one value, for the checkpointer. Errors: from saving.
absl::StatusOr<std::vector<double>> ComputeValues(int64_t count,
                                                  const std::function<double(int64_t)>& value,
                                                  const train::Workers& workers, double cost_s,
                                                  Checkpointer checkpointer);

// Mean of values in their order.
double Mean(std::span<const double> values);

}  // namespace withy::elastic
