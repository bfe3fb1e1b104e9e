// What a way of decoding gave, and what it took.
#pragma once

#include <cstdint>
#include <vector>

namespace withy::bench {

struct DecodedAnswer {
  std::vector<int32_t> tokens;
  // That `ms` and the passes gave: without the prompt's step's, with one that ends a turn.
  int32_t decoded = 0;
  int32_t target_passes = 0;
  int32_t window_drafted = 0;  // tokens drafted while the target waited for weights
  int64_t drafted = 0;         // tokens that were verified
  int64_t accepted = 0;        // of them
  // Prompts aside; the draft's is part of what the service's own ways take.
  double ms = 0;
  double draft_ms = 0;  // of it, drafting while the target stood still
};

}  // namespace withy::bench
