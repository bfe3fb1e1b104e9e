#include "offline/elastic/values.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "absl/status/status.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

// Two rows: the values, and 1 for known ones.
Tensor Table(const std::vector<double>& values, const std::vector<double>& known) {
  return torch::stack(
      {torch::tensor(values, torch::kFloat64), torch::tensor(known, torch::kFloat64)});
}

// Loads the values that an earlier run computed.
int64_t Restore(const StageState& stage_state, std::vector<double>* values,
                std::vector<double>* known) {
  const auto count = static_cast<int64_t>(values->size());
  const auto state = stage_state.Load();
  if (!state.has_value() || state->size() != 1 ||
      (*state)[0].sizes() != torch::IntArrayRef({2, count})) {
    return 0;
  }
  const Tensor table = (*state)[0].contiguous();
  const double* at = table.data_ptr<double>();
  values->assign(at, at + count);
  known->assign(at + count, at + 2 * count);
  return std::count(known->begin(), known->end(), 1.0);
}

}  // namespace

absl::StatusOr<std::vector<double>> ComputeValues(int64_t count,
                                                  const std::function<double(int64_t)>& value,
                                                  const train::Workers& workers, double cost_s,
                                                  Checkpointer checkpointer) {
  std::vector<double> values(static_cast<size_t>(count));
  std::vector<double> known(values.size());
  const int64_t found = Restore(checkpointer.stage_state, &values, &known);
  if (checkpointer.resumed && found > 0) checkpointer.resumed(static_cast<double>(found) * cost_s);
  std::vector<int64_t> missing;
  for (int64_t i = 0; i < count; ++i) {
    if (known[static_cast<size_t>(i)] != 1) missing.push_back(i);
  }
  std::mutex mutex;
  absl::Status failure;
  workers.Run(static_cast<int64_t>(missing.size()), [&](int64_t m) {
    {
      const std::lock_guard lock(mutex);
      if (!failure.ok()) return;
    }
    const auto i = static_cast<size_t>(missing[static_cast<size_t>(m)]);
    const double result = value(static_cast<int64_t>(i));
    const std::lock_guard lock(mutex);
    values[i] = result;
    known[i] = 1;
    if (checkpointer.advance) checkpointer.advance(cost_s);
    if (!failure.ok()) return;
    failure = checkpointer.stage_state.SaveIfDue(
        [&] { return std::vector<Tensor>{Table(values, known)}; });
  });
  if (!failure.ok()) return failure;
  return values;
}

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace withy::elastic
