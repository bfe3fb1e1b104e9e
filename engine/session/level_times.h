// What one level of a model takes on this board, as `withyctl calibrate` found it. Neighbours:
// calibrator.h takes the times, wire/calibration.h reads them back from the record,
// cost_probe.h measures less at start-up where there is no record.
#pragma once

#include <cstdint>
#include <vector>

namespace withy::engine {

struct PrefillTime {
  int32_t tokens = 0;
  double us = 0;  // for all of them
  friend bool operator==(const PrefillTime&, const PrefillTime&) = default;
};

// Microseconds; 0 or empty = not measured.
struct LevelTimes {
  int32_t percent = 100;
  std::vector<PrefillTime> prefill;        // of an empty context; ascending in both
  double decode_us = 0;                    // one step of one call, its context empty
  double decode_us_per_context_token = 0;  // what each token of its context adds
  double decode_us_per_extra_row = 0;      // what another call in the step adds
  // What each token of the context before adds to each token of a prompt.
  double prefill_us_per_context_token = 0;
};

}  // namespace withy::engine
