// What a call must meet: the SLO as its caller gives it, the same as times of this call, and
// whether a latency meets it. One type for all who ask: decide.h (which setting), slack.h (how long
// others may hold it up), pace.h (whether its answer has to fall to a lower level), and who judges
// the measured latency. Pure. Neighbours: wire/call_targets.h reads and writes it.
#pragma once

#include <cstdint>
#include <limits>

#include "policy/constants.h"

namespace withy::policy {

// Milliseconds, of one call. `tpot_ms` is 0 for an answer of one token.
struct Latency {
  double ttft_ms = 0;
  double tpot_ms = 0;
  double end_to_end_ms = 0;
};

// An SLO as the caller gives it; 0 = no limit. Ratios are shares of the full model's latency on an
// idle board (ElastiLM section 3.1).
struct Slo {
  double ttft_ratio = 0;
  double tpot_ratio = 0;
  double ttft_ms = 0;
  double tpot_ms = 0;
  double end_to_end_ms = 0;
  bool strict = false;  // refuse the call rather than miss

  bool any() const {
    return ttft_ratio > 0 || tpot_ratio > 0 || ttft_ms > 0 || tpot_ms > 0 || end_to_end_ms > 0;
  }
};

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// An SLO in milliseconds of one call; infinity = no limit.
struct CallTargets {
  double ttft_ms = kNoLimit;
  double tpot_ms = kNoLimit;  // of an answer of answer_tokens
  double end_to_end_ms = kNoLimit;
  // Of a TPOT that is a share of the full model's: what that share allows an answer's first tokens
  // on top of its later ones, together. So a short answer has more time a token than a long one.
  double ramp_ms = 0;
  double growth_ms = 0;  // likewise what it allows more for each, for every token it is longer
  double answer_tokens = 2;
  int64_t arrived_ns = 0;  // steady time from which TTFT and end-to-end time count

  bool any() const { return ttft_ms < kNoLimit || tpot_ms < kNoLimit || end_to_end_ms < kNoLimit; }
  // What an answer of so many tokens may take for each; fewer than two count as two.
  double TpotMs(double tokens) const;
  // What each token after the first may take, the ramp aside; infinity = no limit.
  double TokenMs() const;
  // Steady times by which the first and the last token must come; 0 = no limit.
  int64_t FirstTokenByNs() const;
  int64_t EndByNs() const;
};

// `ms` after `from_ns`; 0 where `ms` is no limit.
int64_t NanosAfter(int64_t from_ns, double ms);

// `tpot_ms`, of an answer of `answer_tokens` whose first ones take `ramp_ms` longer, as that of an
// answer of `tokens`, each of which beyond those adds `growth_ms`. Fewer than two count as two.
double TpotOfLength(double tpot_ms, double ramp_ms, double growth_ms, double answer_tokens,
                    double tokens);

// A latency, and how its TPOT depends on the length of the answer.
struct AnswerLatency : Latency {  // tpot_ms: of an answer of answer_tokens
  double ramp_ms = 0;             // what an answer's first tokens take longer, together
  double growth_ms = 0;           // that each further token adds to the TPOT: it is deeper
  double answer_tokens = 2;       // >= 2

  // TPOT of an answer of so many tokens.
  double TpotMs(double tokens) const {
    return TpotOfLength(tpot_ms, ramp_ms, growth_ms, answer_tokens, tokens);
  }
};

// `full`: the full model's on an idle board, of which ratios are taken, here and below.
CallTargets ResolveSlo(const Slo& slo, const AnswerLatency& full);

// An SLO as the TLM reads it, as shares of `full`; 1 = no limit. Range (0, 1]. Milliseconds become
// the share that they are; an end-to-end time becomes the same share for both.
struct SloRatios {
  double ttft = 1;
  double tpot = 1;
};
SloRatios RatiosOf(const Slo& slo, const AnswerLatency& full);

// `targets` as a latency is judged by them: those that `slo` gives as ratios are widened by
// kRatioTolerance.
CallTargets Tolerate(const Slo& slo, const CallTargets& targets);

// `latency`: of an answer of `tokens`. A target that is equal but for rounding is met.
bool Meets(const CallTargets& targets, const Latency& latency, double tokens);

}  // namespace withy::policy
