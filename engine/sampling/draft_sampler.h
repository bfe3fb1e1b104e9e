// What a draft model expects next, given how the target will draw: the token that the target would
// draw from the draft's logits, and other likely ones. Neighbours: the workers make
// branches of a token tree of them; sampler.h draws.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/sampling/sampler.h"

namespace withy::engine {

struct DraftCandidate {
  int32_t token = 0;
  double probability = 0;  // by the draft, of all tokens
};

// Draws with the target's parameters at the target's position, so that a draft which agrees with
// the target draws the same token, also where the target samples. Not thread-safe.
class DraftSampler {
 public:
  // Errors: as Sampler::Create.
  static absl::StatusOr<DraftSampler> Create(SamplingParams params);

  // Candidates behind `tokens` (the prompt and the answer) and `path` (drafted tokens behind them),
  // the one that was drawn first. Errors: as Sampler::Pick.
  absl::StatusOr<std::vector<DraftCandidate>> Candidates(std::span<const float> logits,
                                                         std::span<const int32_t> tokens,
                                                         std::span<const int32_t> path);

 private:
  explicit DraftSampler(Sampler sampler) : sampler_(std::move(sampler)) {}

  Sampler sampler_;
  std::vector<int32_t> history_;  // scratch
};

}  // namespace withy::engine
