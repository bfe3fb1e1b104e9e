// One piece of a conversation, as a context's record keeps it, and a request to answer one. Plain
// structs that both workers, the encoder and the wire conversion share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/sampling/sampler.h"
#include "engine/tokenizer/text.h"

namespace withy::engine {

// `text` is the truth; token ids are a function of it. Roles: "system", "user", "assistant", or ""
// for raw text that goes to the model as it is.
struct Segment {
  std::string role;
  std::string text;  // UTF-8
  // Parts of `text` that the model sees; empty = all of it, empty spans alone = not even its role.
  std::vector<ByteSpan> kept = {};
  std::vector<ByteSpan> fixed = {};  // parts that pruning must keep; carried, not used here
  int32_t level_percent = 100;       // model level it was computed at
  bool cancelled = false;            // an answer that was cut short
  bool ended = false;                // an answer that the model ended itself
  int64_t unix_s = 0;
  // Answers: the ids that were generated, where encoding `text` would give others. They count only
  // under the tokenizer with this fingerprint.
  std::vector<int32_t> token_ids = {};
  uint64_t tokenizer_fingerprint = 0;

  // The bytes that the model sees.
  std::string VisibleText() const;
  // Whether pruning left out all of it.
  bool LeftOut() const;
};

// What one call asks of a model.
struct AnswerRequest {
  std::vector<Segment> prompt;  // one raw segment, or messages
  SamplingParams sampling;
  int32_t max_tokens = 256;
  std::vector<std::string> stop;
  int32_t level_percent = 100;
};

// What a request is checked against.
struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  std::vector<int32_t> levels_percent;  // of the model
};

// Errors: INVALID_ARGUMENT naming field, value and limit.
absl::Status Validate(const AnswerRequest& request, const RequestLimits& limits);

}  // namespace withy::engine
