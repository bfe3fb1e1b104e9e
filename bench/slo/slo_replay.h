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
#include "bench/slo/slo_answers.h"
#include "bench/slo/slo_board.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::bench {

struct ServiceAddress {
  std::string address;
  std::vector<std::string> tokens;  // of the apps, in the order of SloApps(); not empty

  // Which of them asks this prompt.
  size_t AppOf(const PromptSet& prompts, size_t prompt) const {
    return prompt / prompts.per_app % tokens.size();
  }
};

// The full model through the idle service, as the caller sees it. Between two calls the board idles
// for as long as the one before took, as it does half of the time in a trace of load 0.5: what has
// idled is slower at first.
struct ServiceTimes {
  std::vector<std::pair<double, double>> ttft_ms;    // prompt tokens, TTFT: one for each call
  std::vector<std::pair<double, double>> decode_ms;  // tokens after the first, time for them
  std::vector<double> overhead_ms;                   // TTFT less the prefill that it reports

  double OverheadMs() const;  // the median
  // For an answer of so many tokens. Prefill takes for each token what it took, in the median, in
  // the fifteen prompts that are nearest in length: it is no line, but steps and bends. The answer
  // takes a + b * tokens after the first, since the first of them take longer; a line by medians.
  policy::Latency Idle(const PromptFacts& prompt, uint32_t answer_tokens) const;
};

// Asks `count` of the prompts, spread over the apps, without an SLO. Errors: the service's.
absl::StatusOr<ServiceTimes> MeasureService(const ServiceAddress& service, const PromptSet& prompts,
                                            size_t count);

// The middle of what was measured before and after: a board that is shared with others is not the
// same then.
policy::Latency IdleBetween(const ServiceTimes& before, const ServiceTimes& after,
                            const PromptFacts& prompt, uint32_t answer_tokens);

struct ReplayOutcome {
  SloOutcome caller;  // as the caller timed it; `met` is for Judge() to say
  v1::Decision decision;
  v1::LatencyReport by_service;          // what the service itself reports
  std::vector<uint32_t> model_percents;  // levels that the answer was computed with, in order
  uint32_t tokens = 0;                   // of the answer
  bool failed = false;                   // ended with an error: late and wrong
};

// Outcomes in the order of `calls`. Apps are processes of their own on a board, so each has its own
// connection here, made before its first call, and a call's thread is there before the call is
// made. The first failure is told on stderr. `progress`: (calls done, calls in all).
std::vector<ReplayOutcome> Replay(const ServiceAddress& service, const PromptSet& prompts,
                                  std::span<const SloCall> calls,
                                  const std::function<void(size_t, size_t)>& progress);

// Says whether the call met its SLO, whose ratios are taken of `full`.
void Judge(const SloCall& call, const policy::Latency& full, ReplayOutcome* outcome);

}  // namespace withy::bench
