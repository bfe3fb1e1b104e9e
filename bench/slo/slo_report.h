// What the end-to-end benchmark says of its traces: a table, and the figures of its last line.
// Pure but for printing. Neighbours: slo.cc runs the traces, slo_figures.h has the other tables.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/slo/slo_board.h"

namespace withy::bench {

inline double Percent(double share) { return 100 * share; }

// One trace and what everyone made of it.
struct TraceResult {
  std::string alpha;
  std::vector<SloScore> simulated = {};    // by policy, ours first
  std::vector<SloScore> ours_by_app = {};  // simulated
  // Through the service, if it ran.
  bool ran = false;
  SloScore real = {};
  std::vector<SloScore> real_by_app = {};
  double real_met_by_service = 0;  // what it reports itself
  double real_tlm_share = 0;       // of the full model's TTFT, where the TLM read
  size_t failed = 0;
};

// Scores of each app's calls. `per_app`: prompts of an app, as PromptSet numbers them.
std::vector<SloScore> ScoresByApp(std::span<const SloOutcome> outcomes,
                                  std::span<const SloCall> calls, size_t per_app);

// To stderr.
void PrintTraces(const std::vector<TraceResult>& results, const std::vector<Policy>& policies);

// Share of all requests that the full model answers right, late or not; of the first trace.
double FullAccuracy(const TraceResult& result, const std::vector<Policy>& policies);

// Adds the figures of the last line to `result`: means over the traces that ran through the
// service, or over all when none did; baselines are simulated always. `tlm_share`: the TLM's time
// as a share of the full model's TTFT where nothing ran for real.
void AddHeadline(const std::vector<TraceResult>& results, const std::vector<Policy>& policies,
                 double tlm_share, nlohmann::json* result);

}  // namespace withy::bench
