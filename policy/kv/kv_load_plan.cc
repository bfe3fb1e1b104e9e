#include "policy/kv/kv_load_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

namespace withy::policy {
namespace {

constexpr double kBytesPerMib = 1 << 20;

// When a side would be done with more work.
struct SideForecast {
  double fixed_ms = 0;  // before its first chunk, calibrated

  double DoneMs(double work_ms, size_t chunks) const {
    return chunks == 0 ? 0 : fixed_ms + work_ms;
  }
};

using MissingChunks = std::span<const MissingChunk>;

// Chunks that are the first to be recomputed come first: those without a copy, then by position.
std::vector<size_t> SplitOrder(MissingChunks missing) {
  std::vector<size_t> order(missing.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const MissingChunk& x = missing[a];
    const MissingChunk& y = missing[b];
    if ((x.stored_bytes == 0) != (y.stored_bytes == 0)) return x.stored_bytes == 0;
    return x.position < y.position;
  });
  return order;
}

// Of `order` as many chunks are recomputed, the first ones, as end both sides soonest; of equal
// numbers the smallest, since reading takes less energy.
size_t BestSplit(std::span<const size_t> order, MissingChunks missing, const LoadCosts& costs,
                 const SideForecast& recompute, const SideForecast& read) {
  double read_ms = 0, recompute_ms = 0;
  size_t without_copy = 0;
  for (const size_t i : order) {
    if (missing[i].stored_bytes == 0) {
      ++without_copy;
    } else {
      read_ms += costs.ReadMs(missing[i]);
    }
  }
  size_t best = order.size();
  double best_ms = std::numeric_limits<double>::infinity();
  for (size_t count = 0; count <= order.size(); ++count) {
    const double ms =
        std::max(recompute.DoneMs(recompute_ms, count), read.DoneMs(read_ms, order.size() - count));
    if (count >= without_copy && ms < best_ms) {
      best = count;
      best_ms = ms;
    }
    if (count == order.size()) break;
    const MissingChunk& next = missing[order[count]];
    recompute_ms += costs.RecomputeMs(next);
    if (next.stored_bytes != 0) read_ms -= costs.ReadMs(next);
  }
  return best;
}

size_t SplitBy(LoadPolicy policy, std::span<const size_t> order, MissingChunks missing,
               const LoadCosts& costs, const SideForecast& recompute, const SideForecast& read) {
  switch (policy) {
    case LoadPolicy::kRecomputeAll:
      return order.size();
    case LoadPolicy::kReadAll:
      return static_cast<size_t>(std::count_if(
          order.begin(), order.end(), [&](size_t i) { return missing[i].stored_bytes == 0; }));
    case LoadPolicy::kPrefix:
    case LoadPolicy::kCake:
      return BestSplit(order, missing, costs, recompute, read);
  }
  return order.size();
}

}  // namespace

double LoadCosts::RecomputeMs(const MissingChunk& chunk) const {
  return recompute_chunk_ms + recompute_position_ms * chunk.position;
}

double LoadCosts::ReadMs(const MissingChunk& chunk) const {
  if (chunk.stored_bytes == 0) return std::numeric_limits<double>::infinity();
  return read_mib_ms * static_cast<double>(chunk.stored_bytes) / kBytesPerMib;
}

void LoadCosts::ScaleRecompute(double factor) {
  recompute_fixed_ms *= factor;
  recompute_chunk_ms *= factor;
  recompute_position_ms *= factor;
}

LoadPlan PlanLoad(MissingChunks missing, const LoadCosts& costs, LoadPolicy policy) {
  const std::vector<size_t> order = SplitOrder(missing);
  const SideForecast recompute{.fixed_ms = costs.recompute_fixed_ms};
  const SideForecast read{.fixed_ms = costs.read_fixed_ms};
  const size_t split = SplitBy(policy, order, missing, costs, recompute, read);
  LoadPlan plan;
  plan.recompute.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(split));
  plan.read.assign(order.begin() + static_cast<std::ptrdiff_t>(split), order.end());
  double recompute_ms = 0, read_ms = 0;
  for (const size_t i : plan.recompute) recompute_ms += costs.RecomputeMs(missing[i]);
  for (const size_t i : plan.read) read_ms += costs.ReadMs(missing[i]);
  plan.recompute_ms = recompute.DoneMs(recompute_ms, plan.recompute.size());
  plan.read_ms = read.DoneMs(read_ms, plan.read.size());
  for (std::vector<size_t>* side : {&plan.recompute, &plan.read}) {
    std::sort(side->begin(), side->end(),
              [&](size_t a, size_t b) { return missing[a].position < missing[b].position; });
  }
  return plan;
}

}  // namespace withy::policy
