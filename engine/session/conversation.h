// From the segments of a context to token ids: a pure function of segments, tokenizer and chat
// template. Neighbours: chat/ renders messages, tokenizer/ encodes; the workers call this before
// every prefill.
//
// A conversation is cut into parts at the begin and the end of every answer, and each part is
// encoded alone. So going on with a conversation never changes the tokens that are already there:
// the markup that closes an answer belongs to the part after it, whether the model ended the answer
// itself or it was cut short.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/template.h"
#include "engine/session/part_cache.h"
#include "engine/session/segment.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Tokens of one prompt and the answer to it.
struct ExchangeTokens {
  int32_t prompt = 0;
  int32_t answer = 0;
};

// The first exchange that stays when a conversation outgrows its window: whenever a prompt would
// reach into the last eighth of `window`, the oldest exchanges go until half of it is free.
// `head_tokens` (system prompt) always stay and are counted in exchanges[0].prompt. A function of
// each prefix of `exchanges`, so that the choice stays as it is until the window overflows again.
size_t FirstKeptExchange(std::span<const ExchangeTokens> exchanges, int32_t head_tokens,
                         int32_t window);

struct EncodedConversation {
  std::vector<int32_t> ids;
  int32_t history_tokens = 0;    // of ids: those of the record before this call
  int32_t adapted_segments = 0;  // of the record: merged or added for the template (AdaptRecord)
  int32_t dropped_segments = 0;  // oldest segments that the window has no room for
};

// Any thread; results depend on arguments alone. Tokenizer and template must outlive it.
class ConversationEncoder {
 public:
  static constexpr size_t kCacheBytes = size_t{8} << 20;  // of texts encoded lately
  // For counting: a prompt that is too long has a length, too.
  static constexpr int32_t kNoWindow = 1 << 30;

  ConversationEncoder(const Tokenizer& tokenizer, const ChatTemplate& chat)
      : tokenizer_(tokenizer), chat_(chat) {}

  // The ids of a record that ends in an answer (or is empty): what the KV after a call stands for.
  // Errors: INVALID_ARGUMENT from the template (role, order), naming the message.
  absl::StatusOr<EncodedConversation> EncodeRecord(std::span<const Segment> segments,
                                                   int32_t window) const;

  // The ids up to where the answer to the last segments begins; at most window - 1 of them. The
  // first `recorded` segments are the record before this call.
  // Errors: as above; OUT_OF_RANGE naming tokens and limit when the prompt does not fit even alone.
  absl::StatusOr<EncodedConversation> EncodePrompt(std::span<const Segment> segments,
                                                   int32_t window, size_t recorded = 0) const;

  // Equal for encoders that make the same ids of the same segments, also in another process: of the
  // vocabulary, and of what becomes of a conversation in which every role speaks.
  uint64_t Fingerprint() const;

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Part {
    std::vector<int32_t> ids;
    bool answer = false;
    size_t first_segment = 0;
  };

  absl::StatusOr<std::vector<Part>> EncodeParts(std::span<const Segment> segments,
                                                bool answer_follows) const;
  absl::Status EncodeMessages(std::span<const Segment> segments, size_t first, bool answer_follows,
                              bool more_follows, std::vector<Part>* parts) const;
  absl::StatusOr<EncodedConversation> EncodeWithin(std::span<const Segment> segments,
                                                   int32_t window, bool answer_follows,
                                                   size_t recorded) const;
  Part EncodePart(std::span<const TextPiece> pieces, size_t first_segment, bool opens) const;
  Part AnswerPart(const Segment& segment, std::string_view text, size_t index) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  mutable PartCache cache_{kCacheBytes};
};

}  // namespace withy::engine
