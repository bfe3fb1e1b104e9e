// Predicts how long a call will take on this board: what the worker measured, corrected by what
// calls really took, and the load they run under. Pure: no clock, no lock, no I/O. Neighbours:
// calls.h says what runs and waits, decide.h chooses by these figures.
//
// TTFT = overhead + TLM + wait for a slot, or until the running calls bear this one + (prefill
// before this call's + its own) + decode steps of others between the pieces. TPOT = decode step
// with as many rows as will run, each at the depth of the middle of its answer, and what an
// answer's first steps take longer, over its length. Source: ElastiLM section 4 (one-shot
// profiling, latency linear in prompt and model size); ours is linear between measured lengths,
// takes the size of a level from what it computes and reads where it is not calibrated, and adds
// depth, load, answers' lengths and live correction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orchestrator/cost_parameters.h"
#include "orchestrator/slack.h"
#include "orchestrator/speed_fit.h"

namespace withy::orchestrator {

// What the first steps of an answer take longer than its later ones, together: behind a prompt
// caches and clocks are not yet what decoding makes them. Learnt from answers of different lengths:
// least squares, old ones forgotten.
class Ramp {
 public:
  // An answer that took `took` for `steps` steps, in steps as calibrated.
  void Observe(double steps, double took);
  // In steps. Range [0, 8]; 0 until answers of two lengths were seen.
  double Steps() const;

 private:
  std::pair<double, double> Fit() const;  // slope, constant

  double answers_ = 0;
  // Weighted means over them.
  double steps_ = 0, steps_squared_ = 0, took_ = 0, steps_took_ = 0;
};

// What measurement says of how fast calls are.
struct Pace {
  SpeedFit prefill;  // of one call
  SpeedFit step;     // of decoding
  Ramp ramp = {};
  double overhead_ms = 1;  // of a call, beside waiting and prefill
  int overhead_surprises = 0;
};

// How far off predictions have been of late: the distribution of log(measured / predicted). What
// something held up lies in a long tail, which a mean and a spread would smear over all calls.
class Deviation {
 public:
  // Before anything was seen: normal.
  Deviation() : Deviation(0, 0.05) {}
  Deviation(double mean, double standard_deviation);

  // `weight`: of what is seen among all that was. Range (0, 1).
  void Observe(double off, double weight);
  // The share that was at most so far off.
  double ShareUpTo(double off) const;

 private:
  static constexpr double kLowest = -0.625;  // what lies beyond either end counts as the end
  static constexpr double kWidth = 0.05;
  std::array<double, 34> shares_{};  // of calls, by kWidth from kLowest on; 1 together
};

// What a prediction is worth, whatever the load that it was made for: a call that leaves room for
// others also leaves them room to be in time.
struct Reliability {
  Deviation ttft;
  Deviation tpot;
};

// What is learnt of one app, whose calls are alike. Predictions of them have a reliability of their
// own: what comes on top of a short prompt and a short answer is more of them than of long ones.
struct AppHistory {
  std::string app;
  Reliability reliability;
  double calls = 0;
  double answer_tokens = 0;  // mean; 0 = no answer has come to its end yet
};

// The chance that what is predicted to take `predicted_ms` takes `limit_ms` at most.
double ChanceWithin(const Deviation& deviation, double predicted_ms, double limit_ms);

// By how much a level takes longer than the pace of all levels says of its calibrated times, which
// were taken in one minute each and are some per cent off.
struct LevelBias {
  uint32_t percent = 100;
  double prefill = 1;
  double step = 1;
};

// What measurement says of the parameters. Starts neutral; Learn() moves it. The pace of all calls
// predicts the next one; that of calls of the full model beside which no other ran tells what it
// takes on the idle board. Lower levels say nothing of that: a short pass after a pause takes half
// as long again, and ratios of what it was blamed on would give away time that callers count.
struct LiveCorrection : Pace {
  Pace idle;
  double mean_completion_tokens = 64;  // how long answers are, for the wait behind others
  double tlm_us_per_byte = 0;          // of a prompt, to read and shorten it; 0 = not known yet
  double tlm_start_us_per_byte = 0;    // the same, as measured when it was opened; 0 = not known
  double pruned_tokens_ratio = 1;      // tokens of a shortened prompt: counted / estimated
  Reliability reliability = {};        // of all calls
  std::vector<AppHistory> apps = {};   // the one that called last stands last
  std::vector<LevelBias> biases = {};  // of levels that have answered
  uint64_t idle_calls = 0;             // that `idle` was learnt from

  LevelBias Bias(uint32_t percent) const;
  // Those of all calls until the app has called.
  const Reliability& ReliabilityOf(std::string_view app) const;
  double AnswerTokensOf(std::string_view app) const;
};

// The call that is predicted.
struct CallShape {
  uint32_t prefill_tokens = 0;          // to compute: prompt and what of the history has no KV
  uint32_t max_tokens = 1;              // where the caller set none, what it is expected to come to
  std::optional<CostParameters> level;  // that it runs at; none = the full model
  double tlm_ms = 0;                    // spent on reading the prompt before it is answered
  uint32_t resident_tokens = 0;         // of its context, whose KV is there
  uint32_t level_percent = 100;         // names `level`
  double answer_tokens = 0;             // to be expected; 0 = as answers are. At most max_tokens
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
  double piece_ms = 50;          // longest piece of a prefill before others decode a step
  double arrivals_per_ms = 0;    // calls that came, of late
};

struct Prediction {
  double wait_ms = 0;  // for a slot and for running calls' sake; part of ttft_ms
  double ttft_ms = 0;
  double tpot_ms = 0;        // of an answer of answer_tokens, ramp included
  double end_to_end_ms = 0;  // for max_tokens tokens
  double newcomers = 0;      // calls to be expected while it takes the board
  double ramp_ms = 0;        // what an answer's first tokens take longer, together
  double answer_tokens = 2;  // >= 2
  double growth_ms = 0;      // that each further token of an answer adds to its TPOT: it is deeper

  // TPOT of an answer of so many tokens, in milliseconds.
  double TpotMs(double tokens) const;
};

// `tpot_ms`, of an answer of `answer_tokens` whose first ones take `ramp_ms` longer, as that of an
// answer of `tokens`, each of which beyond those adds `growth_ms`. Fewer than two count as two.
double TpotOfLength(double tpot_ms, double ramp_ms, double growth_ms, double answer_tokens,
                    double tokens);

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

// What the call means to its neighbours once it runs; without limits. `lowest`: the level that it
// may fall to; none = it keeps its own.
CallDemand DemandOf(const CostParameters& cost, const LiveCorrection& live, const CallShape& call,
                    const Prediction& predicted, const std::optional<CostParameters>& lowest = {});

// Reading and shortening a prompt of so many bytes; 0 while nothing is known.
double TlmMs(const LiveCorrection& live, size_t bytes);

// Tokens of a prompt of `prompt_tokens` when `kept_bytes` of its `text_bytes` are left: in
// proportion, corrected live, at most `prompt_tokens`, at least 1.
uint32_t EstimatePrunedTokens(const LiveCorrection& live, uint32_t prompt_tokens, size_t text_bytes,
                              size_t kept_bytes);

// `live` for a worker that states another cost than the one that it was learnt from: what corrects
// calibrated times begins anew, what is known of apps and their answers stays.
LiveCorrection ForNewCost(const LiveCorrection& live);

// What one finished call showed. Zero counts mean "nothing to learn from this part".
struct Observation {
  std::optional<CostParameters> level;  // as in CallShape
  uint32_t resident_tokens = 0;         // as in CallShape
  uint32_t level_percent = 100;         // likewise
  uint32_t prefilled_tokens = 0;
  double prefill_ms = 0;          // its own prefill, waits excluded
  double overhead_ms = -1;        // TTFT minus queue and prefill; negative = unknown
  uint32_t decoded_tokens = 0;    // after the first
  double decode_ms = 0;           // first token to last
  double mean_decode_rows = 1;    // rows of its decode steps, itself included, averaged over time
  double other_depth_tokens = 0;  // of the contexts of the other rows, all together, likewise
  double foreign_prefill_ms = 0;  // prefill of other calls within decode_ms
  bool complete = false;          // ended by itself: its length counts
  bool full_alone = true;         // the full model answered, and no other call ran while it did
  size_t tlm_bytes = 0;           // of the prompt that the TLM read
  double tlm_ms = 0;
  bool tlm_too_slow = false;      // it was not asked, by what it is thought to take
  uint32_t estimated_tokens = 0;  // of a shortened prompt, by EstimatePrunedTokens
  uint32_t counted_tokens = 0;    // of the same, rendered
  std::string app = {};           // whose call it was, for what follows
  double ttft_share = 0;          // measured / predicted; 0 = unknown, here and below
  double tpot_share = 0;
  // A measurement made for its own sake while the board was idle: believed more than a call.
  bool probe = false;
};

// Exponentially weighted: one observation moves a prediction by a fifth of the way, and counts as
// at most 30 % off: a stall cannot poison the model, and what is learnt is the middle, not the
// mean, of what is seen. The idle board's pace becomes a mean over 25 calls instead. Four surprises
// in a row are no stall: what was learnt in a burst is soon forgotten behind it. Which part of a
// prediction was wrong, speed_fit.h tells from calls of different lengths, levels and depths.
LiveCorrection Learn(const CostParameters& cost, const LiveCorrection& live,
                     const Observation& seen);

}  // namespace withy::orchestrator
