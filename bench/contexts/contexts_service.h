// What keeping KV is worth to an app of the whole service, all five processes and a real prefill:
// the first token after everything was killed, and decoding over stored KV. Neighbour:
// contexts_run.h measures context_store alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::bench {

struct RestartGain {
  uint32_t context_tokens = 0;
  double with_kv_ms = 0;  // time to the first token, KV read back
  double without_ms = 0;  // KV recomputed
  double gain() const { return without_ms / with_kv_ms; }
};

// For each length: a context of about as many tokens is made, its KV is written, all processes are
// killed and started again, and the context is called. Both ways take turns. Errors: those of the
// service.
absl::StatusOr<std::vector<RestartGain>> MeasureRestart(const std::string& model,
                                                        const std::vector<uint32_t>& lengths);

// Tokens a second of an answer on a context whose KV the store has compressed, over those with all
// KV at 8 bits: the median of pairs that took turns.
absl::StatusOr<double> MeasureDecodeRatio(const std::string& model, uint32_t context_tokens,
                                          uint32_t pairs);

}  // namespace withy::bench
