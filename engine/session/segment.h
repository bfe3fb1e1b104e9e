// A segment of a conversation, as a context's record stores it, and a request to answer one. Plain
// structs shared by both workers, the encoder and the wire conversion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/sampling/sampler.h"
#include "engine/tokenizer/text.h"

namespace withy::engine {

// `text` is the source; token ids are a function of it. Roles: "system", "user", "assistant", or ""
// for raw text that is given to the model unchanged.
struct Segment {
  std::string role;
  std::string text;  // UTF-8
  // Byte spans of `text` that the model sees. Empty = all; only empty spans = not even the role.
  std::vector<ByteSpan> kept = {};
  std::vector<ByteSpan> fixed = {};  // parts that pruning must keep; not used here
  int32_t level_percent = 100;       // model level it was computed at
  bool cancelled = false;            // an answer that was cut short
  bool ended = false;                // an answer that the model itself ended
  int64_t unix_s = 0;
  // Answers: the generated ids, if encoding `text` gives others. Valid only for the tokenizer with
  // this fingerprint.
  std::vector<int32_t> token_ids = {};
  uint64_t tokenizer_fingerprint = 0;

  // The bytes of `text` that the model sees.
  std::string VisibleText() const;
  // Whether pruning removed the whole segment.
  bool LeftOut() const;
};

// One call's request to a model.
struct AnswerRequest {
  std::vector<Segment> prompt;  // one raw segment, or messages
  SamplingParams sampling;
  int32_t max_tokens = 256;
  std::vector<std::string> stop;
  int32_t level_percent = 100;
};

// Limits for validating a request.
struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  std::vector<int32_t> levels_percent;  // of the model
};

// Errors: INVALID_ARGUMENT naming field, value and limit.
absl::Status Validate(const AnswerRequest& request, const RequestLimits& limits);

}  // namespace withy::engine
