// A board that is simulated event by event: one engine that computes the calls of a trace under one
// policy. Admission, turns, steps, pieces and falling levels are the service's own code
// (policy/call/admission.h, policy/step/step_plan.h, policy/call/prompt_level.h,
// policy/call/pace.h) on a clock that computing moves; only the time of a pass comes from a table.
// Neighbours: slo_policy.h decides, slo_times.h has the times, slo_replay.h runs the same trace for
// real.
//
// Simpler than the real board, and slower where it differs: reading with the TLM and switching hold
// up the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/slo/slo_policy.h"

namespace withy::bench {

// What became of one call.
struct SloOutcome {
  double ttft_ms = 0;
  double tpot_ms = 0;  // 0 for an answer of one token
  double end_to_end_ms = 0;
  double tlm_ms = 0;
  double switch_ms = 0;
  bool met = false;    // TTFT, TPOT and end-to-end time within the SLO, tolerance included
  bool right = false;  // whenever it came
  uint32_t prompt_percent = 100;
  uint32_t model_percent = 100;
  bool fell = false;  // to a lower level in mid-answer
};

// The full model's latency on an idle board, for one prompt and an answer as long as the right one:
// what ratios are judged by.
policy::Latency IdleFull(const BoardFacts& board, const PromptFacts& prompt);

// Whether a latency meets an SLO whose ratios are taken of `full`, for an answer as long. A TPOT of
// 0 is met.
bool MeetsSlo(const policy::Slo& slo, const policy::Latency& full, const policy::Latency& seen);

// Outcomes in the order of `calls`, which are in the order of their arrival. An answer has the
// right one's number of tokens. One that fell to a lower level is right when both levels' are.
std::vector<SloOutcome> RunBoard(const BoardFacts& board, const Policy& policy,
                                 std::span<const PromptFacts> prompts,
                                 std::span<const SloCall> calls, uint64_t seed);

// Shares of all calls.
struct SloScore {
  double slo_met = 0;
  double accuracy = 0;      // right and in time
  double right_anyway = 0;  // right, late or not
  double mean_ttft_ms = 0;
  double mean_tpot_ms = 0;  // of answers of two tokens or more
  double mean_tlm_ms = 0;
  double mean_switch_ms = 0;
};
SloScore ScoreOf(std::span<const SloOutcome> outcomes);

}  // namespace withy::bench
