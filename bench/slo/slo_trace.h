// The traces of the end-to-end benchmark: six apps with their SLOs, how many requests each makes,
// in what order, and when they arrive. Pure; everything follows from the seed. Neighbours:
// slo_board.h replays a trace on a simulated board, slo_replay.h on the running service.
//
// Source: ElastiLM section 5.1 (Table 3, Num(i)). Ours: each app's prompts are those of the
// corpus's task that is most like its dataset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "offline/corpus/record.h"

namespace withy::bench {

// An app of Table 3; its ratios are shares of the full model's idle latency.
struct SloApp {
  std::string_view name;
  corpus::Task task;
  double ttft_ratio;
  double tpot_ratio;
};

inline constexpr size_t kSloApps = 6;
// By SLO level i = 1..6, tightest first.
const std::array<SloApp, kSloApps>& SloApps();

// Num(i) = requests * e^(alpha i) / sum of e^(alpha k), rounded so that the sum is `requests`: the
// largest remainders are rounded up. Positive alpha: more relaxed SLOs.
std::array<size_t, kSloApps> RequestsByApp(size_t requests, double alpha);

struct TraceRequest {
  size_t app = 0;     // index into SloApps()
  size_t prompt = 0;  // the app's n-th prompt
  double arrival_ms = 0;
};

// Requests in random order; each app asks its prompts 0, 1, ... once. Arrivals are 0.
std::vector<TraceRequest> DrawRequests(size_t requests, double alpha, uint64_t seed);

// Poisson arrivals: independent exponential gaps of this mean, the first one included.
void SetArrivals(double mean_gap_ms, uint64_t seed, std::vector<TraceRequest>* trace);

// Index of an app's n-th prompt among the corpus's records: task index % 6, as Generator::At.
uint64_t RecordIndex(size_t app, size_t prompt);

}  // namespace withy::bench
