// Times of one model level on this board, as measured by `withyctl calibrate`. Neighbours:
// calibrator.h measures them, wire/calibration.h reads them from the record, cost_probe.h measures
// fewer at start if there is no record.
#pragma once

#include <cstdint>
#include <vector>

namespace withy::engine {

struct PrefillTime {
  int32_t tokens = 0;
  double us = 0;  // for all `tokens` together
  friend bool operator==(const PrefillTime&, const PrefillTime&) = default;
};

// Microseconds; 0 or empty = not measured.
struct LevelTimes {
  int32_t percent = 100;
  std::vector<PrefillTime> prefill;        // with an empty context; ascending in both fields
  double decode_us = 0;                    // one step with one call and an empty context
  double decode_us_per_context_token = 0;  // added per token of the call's context
  double decode_us_per_extra_row = 0;      // added by another call in the step
  // Steps of one call with a token tree, by its rows, ascending; the first is decode_us.
  std::vector<PrefillTime> trees = {};
  // Added per prompt token and per token of the context before it.
  double prefill_us_per_context_token = 0;
};

}  // namespace withy::engine
