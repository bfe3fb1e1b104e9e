// Replays a trace through the running service in real time: every request at its moment, each on a
// stream of its own, timed by the caller. Neighbours: slo_board.h simulates the same trace;
// ./withy bench slo starts the service.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/slo_answers.h"
#include "bench/slo_board.h"

namespace withy::bench {

struct ServiceAddress {
  std::string address;
  std::vector<std::string> tokens;  // of the apps, in the order of SloApps(); not empty

  // Of the app that asks this prompt.
  const std::string& TokenFor(const PromptSet& prompts, size_t prompt) const {
    return tokens[prompt / prompts.per_app % tokens.size()];
  }
};

// The full model through the idle service, as the caller sees it: TTFT is a + b * prompt tokens,
// first token to last takes c + d * tokens after the first, since the first of them take longer;
// medians over single calls. Between two of them the board idles for as long as the call before
// took, as it does half of the time in a trace of load 0.5: what has idled is slower at first.
struct ServiceTimes {
  double ttft_ms = 0;            // a; below zero where attention makes long prompts dearer
  double ttft_ms_per_token = 0;  // b
  double ramp_ms = 0;            // c
  double token_ms = 0;           // d
  double overhead_ms = 0;        // median of TTFT less the prefill that the service reports

  // For an answer of so many tokens.
  IdleTimes Idle(const PromptFacts& prompt, uint32_t answer_tokens) const;
};

// Asks `count` of the prompts, spread over the apps, without an SLO. Errors: the service's.
absl::StatusOr<ServiceTimes> MeasureService(const ServiceAddress& service, const PromptSet& prompts,
                                            size_t count);

// What lies in the middle of two measurements.
ServiceTimes Mean(const ServiceTimes& a, const ServiceTimes& b);

struct ReplayOutcome {
  SloOutcome caller;  // as the caller timed it; `met` is for Judge() to say
  v1::Decision decision;
  v1::LatencyReport by_service;  // what the service itself reports
  uint32_t tokens = 0;           // of the answer
  bool failed = false;           // ended with an error: late and wrong
};

// Outcomes in the order of `calls`. Calls that fail are counted and the first failure is told on
// stderr. `progress`: (calls done, calls in all).
std::vector<ReplayOutcome> Replay(const ServiceAddress& service, const PromptSet& prompts,
                                  std::span<const SloCall> calls,
                                  const std::function<void(size_t, size_t)>& progress);

// Says whether the call met its SLO, whose ratios are taken of `full`.
void Judge(const PromptFacts& prompt, const SloCall& call, const ServiceTimes& full,
           ReplayOutcome* outcome);

}  // namespace withy::bench
