// Predicts how long a call will take on this board: what the worker measured, corrected by what
// calls really took, and the load they run under. Pure: no clock, no lock, no I/O. Neighbours:
// admission.h says what runs and waits, latency_learning.h learns, decide.h chooses by these
// figures.
//
// TTFT = overhead + TLM + wait (for a slot, or until running calls have slack for this one) +
// prefill of the prompts before this call's and of its own + decode steps of others between the
// pieces of prefill. TPOT = a decode step with all rows that will run, each at the depth of the
// middle of its answer, plus the ramp divided by the answer's length. Source: ElastiLM section 4
// (one-shot profiling, latency linear in prompt and model size). Ours is linear between measured
// lengths, takes a level that is not calibrated by the operations and bytes it states, and adds
// depth, load, answers' lengths and live correction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/board/cost_parameters.h"
#include "policy/board/live_correction.h"
#include "policy/call/call_targets.h"
#include "policy/call/slack.h"

namespace withy::policy {

// The call that is predicted.
struct CallShape {
  uint32_t prefill_tokens = 0;  // to compute: prompt and what of the history has no KV
  uint32_t max_tokens = 1;      // where the caller set none, what it is expected to come to
  std::optional<CostParameters> level = {};  // that it runs at; none = the full model
  double tlm_ms = 0;                         // spent on reading the prompt before it is answered
  uint32_t resident_tokens = 0;              // of its context, whose KV is there
  uint32_t level_percent = 100;              // names `level`
  double answer_tokens = 0;  // to be expected; 0 = as answers are. At most max_tokens
  double speedup = 1;        // of decoding, that speculation is counted on for
};

// A call that runs or waits before this one.
struct OtherCall {
  uint32_t prefill_tokens = 0;    // still to compute
  uint32_t remaining_tokens = 0;  // still to generate, at most
  Slack slack = {};               // of a running call
  bool goes_before = true;        // its prompt, by the order in which prompts are computed
  uint32_t resident_tokens = 0;   // of its context, its prompt and its answer, that have KV
  bool open_ended = false;        // remaining_tokens is expected, and may be exceeded
};

struct Load {
  std::vector<OtherCall> running;
  std::vector<OtherCall> ahead;  // waiting, in the order they will start
  uint32_t slots = 1;            // calls that run at once
  double piece_ms = kPieceMs;    // longest piece of a prefill before others decode a step
  double arrivals_per_ms = 0;    // calls that came, of late
};

struct Prediction : AnswerLatency {  // end_to_end_ms: for max_tokens tokens
  double wait_ms = 0;                // for a slot and for running calls' sake; part of ttft_ms
  double newcomers = 0;              // calls to be expected while it takes the board
};

// This call, now, under `load`. `cost` is the full model's, here and below.
Prediction Predict(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                   const Load& load);

// What prefill of other calls took of this call's time: `tokens` of them, and the sum over them of
// the tokens of context before each, at the full model.
double ForeignPrefillMs(const CostParameters& cost, const LiveCorrection& live, double tokens,
                        double context_tokens);

// The full model on an idle board: the denominator of ratio SLOs. `call.level` and `call.tlm_ms`
// are ignored.
Prediction PredictFullIdle(const CostParameters& cost, const LiveCorrection& live,
                           const CallShape& call);

// What the call means to its neighbours once it runs; without targets. `lowest`: the level that it
// may fall to; none = it keeps its own.
CallDemand DemandOf(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                    const Prediction& predicted, const std::optional<CostParameters>& lowest = {});

// How long a refused caller should wait: about until one of the `running` calls has ended. From
// kLeastRetryMs to kMostRetryMs.
double RetryAfterMs(const CostParameters& cost, const LiveCorrection& live, uint32_t running);

// Reading and shortening a prompt of so many bytes; 0 while nothing is known.
double TlmMs(const LiveCorrection& live, size_t bytes);

// Tokens of a prompt of `prompt_tokens` when `kept_bytes` of its `text_bytes` are left: in
// proportion, corrected live, at most `prompt_tokens`, at least 1.
uint32_t EstimatePrunedTokens(const LiveCorrection& live, uint32_t prompt_tokens, size_t text_bytes,
                              size_t kept_bytes);

// How a decode step is made up, for latency_learning.h.
//
// Calls beside one that is predicted or was observed: rows of its steps, and the tokens of their
// contexts together. Their levels are not known: they count as the full model's.
struct OtherRows {
  double rows = 0;
  double depth = 0;
};
// One decode step of a call whose level takes `own`, `depth` tokens deep, beside others.
Work StepWork(const CostParameters& cost, const CostParameters& own, double depth,
              const OtherRows& others);

}  // namespace withy::policy
