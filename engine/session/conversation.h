// Converts the segments of a context to token ids: a pure function of segments, tokenizer and chat
// template. Neighbours: chat/ renders messages, tokenizer/ encodes; the workers call this before
// every prefill.
//
// A conversation is cut into parts at the begin and end of every answer, and each part is encoded
// separately. So continuing a conversation never changes its existing tokens: the markup that
// closes an answer belongs to the next part, whether the model ended the answer or it was cut
// short.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/chat/call_text.h"
#include "engine/chat/template.h"
#include "engine/session/answer_tools.h"
#include "engine/session/part_cache.h"
#include "engine/session/segment.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Token counts of one prompt and its answer.
struct ExchangeTokens {
  int32_t prompt = 0;
  int32_t answer = 0;
};

// Index of the first exchange to keep when a conversation exceeds its window: as soon as a prompt
// would reach into the last eighth of `window`, the oldest exchanges are dropped until half of the
// window is free. `head_tokens` (system prompt) are always kept and are counted in
// exchanges[0].prompt. Only the first `droppable` exchanges may be dropped; the rest is the present
// call's prompt. A function of each prefix of `exchanges`, so the choice is stable until the window
// overflows again.
size_t FirstKeptExchange(std::span<const ExchangeTokens> exchanges, int32_t head_tokens,
                         int32_t window, size_t droppable);

struct EncodedConversation {
  std::vector<int32_t> ids;
  int32_t history_tokens = 0;  // ids that belong to the record before this call
  // Ids that EncodeRecord gives for that record, too: KV of the record is valid for these. Fewer
  // than history_tokens where a file's template writes earlier turns anew, as those of reasoning
  // models do, which leave out what was thought before.
  int32_t stable_tokens = 0;
  int32_t adapted_segments = 0;  // segments of the record merged or added by AdaptRecord
  // Segments of the record that do not fit the window: the oldest after the system prompt.
  int32_t dropped_segments = 0;
  // The prompt has begun a thought (chat/thoughts.h), with which the answer goes on.
  bool answer_begins_in_thought = false;
};

// A part of a conversation that is encoded separately.
struct ConversationPart {
  std::vector<int32_t> ids;
  bool answer = false;
  bool cancelled = false;  // ids are incomplete
  bool opens_thought = false;
  size_t first_segment = 0;
};

// Thread-safe; results depend only on the arguments, and for templates that tell the date on the
// time of the first message, which is the clock's until it is recorded. Tokenizer, template and
// clock must outlive it.
class ConversationEncoder {
 public:
  static constexpr size_t kCacheBytes = size_t{8} << 20;  // cache of recently encoded parts
  // Window for counting: a prompt that is too long has a length, too.
  static constexpr int32_t kNoWindow = 1 << 30;

  // `clock`: what templates that tell the date see in a conversation without recorded messages.
  ConversationEncoder(const Tokenizer& tokenizer, const ChatTemplate& chat,
                      const Clock& clock = Clock::Real())
      : tokenizer_(tokenizer), chat_(chat), clock_(clock) {}

  // The ids of a record that ends in an answer (or is empty): the ids that the KV after a call
  // represents. At most `window` ids; a record made with a larger window may lose even its last
  // exchange. `cancelled` is polled meanwhile; null: never. Errors: INVALID_ARGUMENT from the
  // template (role, order), naming the message; CANCELLED.
  absl::StatusOr<EncodedConversation> EncodeRecord(
      std::span<const Segment> segments, int32_t window, const CancelCheck* cancelled = nullptr,
      Truncation truncation = Truncation::kRecord) const;

  // The ids up to the start of the answer to the last segments, or up to the end of the last
  // segment if that is an answer, which then goes on; at most window - 1. The first `recorded`
  // segments are the record before this call; `truncation` says what is dropped if the window has
  // no room. Errors: as above; OUT_OF_RANGE naming tokens and limit if what may not be dropped does
  // not fit.
  absl::StatusOr<EncodedConversation> EncodePrompt(
      std::span<const Segment> segments, int32_t window, size_t recorded = 0,
      const CancelCheck* cancelled = nullptr, Truncation truncation = Truncation::kRecord) const;
  // As EncodePrompt, but also accepts a prompt that does not fit, for counting.
  absl::StatusOr<EncodedConversation> MeasurePrompt(
      std::span<const Segment> segments, int32_t window, size_t recorded = 0,
      const CancelCheck* cancelled = nullptr, Truncation truncation = Truncation::kRecord) const;

  // The tools that the answer to `prompt`, which follows `record`, may call.
  AnswerTools ToolsOf(std::span<const Segment> record, std::span<const Segment> prompt) const;

  // How the model writes calls of tools.
  CallText CallsForm() const;

  // Equal for encoders that produce the same ids from the same segments, also in other processes.
  // Covers the vocabulary and the encoding of a conversation with every role.
  uint64_t Fingerprint() const;

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  // What a template is told beside the messages.
  struct Told {
    ConversationSettings settings;
    int64_t unix_s = 0;  // the time
  };

  // What holds for `segments`, of which the first `recorded` are the record: a template that does
  // not take what the record has, as after a change of the model, is not told it. What the prompt
  // has always is.
  ConversationSettings SettingsFor(std::span<const Segment> segments, size_t recorded) const;
  absl::StatusOr<std::vector<ConversationPart>> EncodeParts(std::span<const Segment> segments,
                                                            bool answer_follows, const Told& told,
                                                            const CancelCheck* cancelled) const;
  // How many of the first `ids` EncodeRecord gives for the record, too.
  absl::StatusOr<int32_t> StableTokens(std::span<const Segment> record, const Told& told,
                                       std::span<const int32_t> ids,
                                       const CancelCheck* cancelled) const;
  absl::Status EncodeMessages(std::span<const Segment> segments, size_t first, bool answer_follows,
                              bool more_follows, const Told& told, const CancelCheck* cancelled,
                              std::vector<ConversationPart>* parts) const;
  // Puts generated texts in the place of what the template shows of answers with calls, where that
  // is the same. Returns them, "" for other messages.
  std::vector<std::string> ShowCallsAsGenerated(std::span<const Segment> segments,
                                                RenderedChat* rendered) const;
  bool HasGeneratedIds(const Segment& segment) const {
    return !segment.token_ids.empty() && segment.tokenizer_fingerprint == tokenizer_.fingerprint();
  }
  absl::StatusOr<EncodedConversation> EncodeWithin(std::span<const Segment> segments,
                                                   int32_t window, bool answer_follows,
                                                   size_t recorded, const CancelCheck* cancelled,
                                                   Truncation truncation) const;
  // Approximate tokens of the leading system segments with their markup, and of the tools.
  int32_t HeadTokens(std::span<const Segment> head, std::string_view tools_json,
                     const CancelCheck* cancelled) const;
  // If `cancelled` returned true, the part is incomplete and EncodeParts() fails.
  ConversationPart EncodePart(std::span<const TextPiece> pieces, size_t first_segment, bool opens,
                              const CancelCheck* cancelled) const;
  ConversationPart AnswerPart(const Segment& segment, std::string_view text, size_t index,
                              const CancelCheck* cancelled) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  const Clock& clock_;
  mutable PartCache cache_{kCacheBytes};
};

}  // namespace withy::engine
