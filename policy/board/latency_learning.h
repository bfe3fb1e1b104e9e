// Moves a LiveCorrection by what one finished call showed. Pure. Neighbours: latency_model.h
// predicts by the result, speed_fit.h tells which part of a prediction was wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "policy/board/cost_parameters.h"
#include "policy/board/live_correction.h"

namespace withy::policy {

// `live` for a worker that states another cost than the one that it was learnt from: what corrects
// calibrated times begins anew, what is known of apps and their answers stays.
LiveCorrection ForNewCost(const LiveCorrection& live);

// What one finished call showed. Zero counts mean "nothing to learn from this part".
struct Observation {
  std::optional<CostParameters> level = {};  // as in CallShape
  uint32_t resident_tokens = 0;              // as in CallShape
  uint32_t level_percent = 100;              // likewise
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
  double speedup = 0;  // by speculation; decode_ms is what plain decoding would have taken
  // A measurement made for its own sake while the board was idle: believed more than a call.
  bool probe = false;
};

// One observation moves the prediction of equal work by kFitWeight of the way, and counts as at
// most kMaxSurprise off, so that one stall does not move it far. kSurprisesBelieved observations in
// a row that are further off to the same side are believed. The idle board's speed is a mean over
// many calls (kIdleWeight). speed_fit.h tells which part of a prediction was wrong, from calls of
// different lengths, levels and depths.
LiveCorrection Learn(const CostParameters& cost, const LiveCorrection& live,
                     const Observation& seen);

}  // namespace withy::policy
