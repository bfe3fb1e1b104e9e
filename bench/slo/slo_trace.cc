#include "bench/slo/slo_trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "offline/corpus/rng.h"

namespace withy::bench {

const std::array<SloApp, kSloApps>& SloApps() {
  using corpus::Task;
  static constexpr std::array<SloApp, kSloApps> kApps = {{
      {"XiaoAi", Task::kMath, 0.2, 0.5},    // a voice assistant's sums, dates and clock times
      {"Gboard", Task::kReply, 0.2, 0.6},   // smart replies
      {"Shortcuts", Task::kUi, 0.4, 0.7},   // UI automation
      {"Octopus", Task::kApi, 0.6, 0.8},    // API calls
      {"GMail", Task::kSummary, 0.8, 0.9},  // summaries
      {"Rewind", Task::kQa, 1.0, 1.0},      // questions about what was on the screen
  }};
  return kApps;
}

std::array<size_t, kSloApps> RequestsByApp(size_t requests, double alpha) {
  std::array<double, kSloApps> wanted{};
  double sum = 0;
  for (size_t i = 0; i < kSloApps; ++i) sum += std::exp(alpha * static_cast<double>(i + 1));
  std::array<size_t, kSloApps> counts{};
  for (size_t i = 0; i < kSloApps; ++i) {
    wanted[i] = static_cast<double>(requests) * std::exp(alpha * static_cast<double>(i + 1)) / sum;
    counts[i] = static_cast<size_t>(wanted[i]);
  }
  std::array<size_t, kSloApps> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return wanted[a] - std::floor(wanted[a]) > wanted[b] - std::floor(wanted[b]);
  });
  const size_t left = requests - std::accumulate(counts.begin(), counts.end(), size_t{0});
  for (size_t i = 0; i < left; ++i) ++counts[order[i % kSloApps]];
  return counts;
}

std::vector<TraceRequest> DrawRequests(size_t requests, double alpha, uint64_t seed) {
  const std::array<size_t, kSloApps> counts = RequestsByApp(requests, alpha);
  std::vector<TraceRequest> trace;
  for (size_t app = 0; app < kSloApps; ++app) {
    for (size_t prompt = 0; prompt < counts[app]; ++prompt) trace.push_back({app, prompt, 0});
  }
  corpus::Rng rng(seed);
  rng.Shuffle(trace);
  return trace;
}

void SetArrivals(double mean_gap_ms, uint64_t seed, std::vector<TraceRequest>* trace) {
  corpus::Rng rng(seed ^ 0x9E3779B97F4A7C15u);
  double now_ms = 0;
  for (TraceRequest& request : *trace) {
    const double uniform = static_cast<double>(rng.Next() >> 11) * 0x1.0p-53;
    now_ms -= mean_gap_ms * std::log1p(-uniform);
    request.arrival_ms = now_ms;
  }
}

uint64_t RecordIndex(size_t app, size_t prompt) {
  return prompt * corpus::kTaskCount + static_cast<uint64_t>(SloApps()[app].task);
}

}  // namespace withy::bench
