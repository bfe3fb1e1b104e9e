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
// `head_tokens` (system prompt) always stay and are counted in exchanges[0].prompt. Only the first
// `droppable` exchanges may go: the others are the present call's own prompt. A function of each
// prefix of `exchanges`, so that the choice stays as it is until the window overflows again.
size_t FirstKeptExchange(std::span<const ExchangeTokens> exchanges, int32_t head_tokens,
                         int32_t window, size_t droppable);

struct EncodedConversation {
  std::vector<int32_t> ids;
  int32_t history_tokens = 0;    // of ids: those of the record before this call
  int32_t adapted_segments = 0;  // of the record: merged or added for the template (AdaptRecord)
  // Segments of the record that the window has no room for: the oldest after the system prompt.
  int32_t dropped_segments = 0;
};

// A stretch of a conversation that is encoded alone.
struct ConversationPart {
  std::vector<int32_t> ids;
  bool answer = false;
  bool cancelled = false;  // ids are incomplete
  size_t first_segment = 0;
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
  // At most `window` of them: of a record that was made with a larger window even the last exchange
  // may be left out. `cancelled` is asked meanwhile; null: never.
  // Errors: INVALID_ARGUMENT from the template (role, order), naming the message; CANCELLED.
  absl::StatusOr<EncodedConversation> EncodeRecord(std::span<const Segment> segments,
                                                   int32_t window,
                                                   const CancelCheck* cancelled = nullptr) const;

  // The ids up to where the answer to the last segments begins; at most window - 1 of them. The
  // first `recorded` segments are the record before this call, of which the oldest exchanges are
  // left out where the window has no room for them; what the call brings is never left out.
  // Errors: as above; OUT_OF_RANGE naming tokens and limit when system prompt and prompt do not fit
  // even alone.
  absl::StatusOr<EncodedConversation> EncodePrompt(std::span<const Segment> segments,
                                                   int32_t window, size_t recorded = 0,
                                                   const CancelCheck* cancelled = nullptr) const;
  // The same for counting: a prompt that does not fit has its length, too.
  absl::StatusOr<EncodedConversation> MeasurePrompt(std::span<const Segment> segments,
                                                    int32_t window, size_t recorded = 0,
                                                    const CancelCheck* cancelled = nullptr) const;

  // Equal for encoders that make the same ids of the same segments, also in another process: of the
  // vocabulary, and of what becomes of a conversation in which every role speaks.
  uint64_t Fingerprint() const;

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  absl::StatusOr<std::vector<ConversationPart>> EncodeParts(std::span<const Segment> segments,
                                                            bool answer_follows,
                                                            const CancelCheck* cancelled) const;
  absl::Status EncodeMessages(std::span<const Segment> segments, size_t first, bool answer_follows,
                              bool more_follows, const CancelCheck* cancelled,
                              std::vector<ConversationPart>* parts) const;
  absl::StatusOr<EncodedConversation> EncodeWithin(std::span<const Segment> segments,
                                                   int32_t window, bool answer_follows,
                                                   size_t recorded,
                                                   const CancelCheck* cancelled) const;
  // Tokens of the leading system segments with their markup, about.
  int32_t HeadTokens(std::span<const Segment> head, const CancelCheck* cancelled) const;
  // The part is incomplete once `cancelled` has held: EncodeParts() then fails.
  ConversationPart EncodePart(std::span<const TextPiece> pieces, size_t first_segment, bool opens,
                              const CancelCheck* cancelled) const;
  ConversationPart AnswerPart(const Segment& segment, std::string_view text, size_t index,
                              const CancelCheck* cancelled) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  mutable PartCache cache_{kCacheBytes};
};

}  // namespace withy::engine
