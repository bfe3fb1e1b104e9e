// The Big Little Decoder (Kim et al. 2023), which LLMCad compares itself with: the draft answers as
// long as it is sure, and the target takes back what it finds unlikely. Lossy. Neighbour:
// model_tokens.h has the KV.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "bench/speculation/decoded_answer.h"
#include "engine/model/model.h"

namespace withy::bench {

struct BigLittleThresholds {
  double fallback = 0;  // the draft goes on while its likeliest token is at least as likely
  double rollback = 0;  // the target replaces the first token less likely than exp(-rollback)

  bool operator==(const BigLittleThresholds&) const = default;
};

// Borrowed.
struct BigLittlePair {
  engine::Model& target;
  engine::Model& draft;
  std::span<const int32_t> ends;  // tokens that end an answer
  BigLittleThresholds thresholds;
};

// At most `count` tokens behind `prompt` (not empty). Errors: as Model::Forward.
absl::StatusOr<DecodedAnswer> DecodeBigLittle(const BigLittlePair& pair,
                                              std::span<const int32_t> prompt, int32_t count);

}  // namespace withy::bench
