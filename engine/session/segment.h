// A segment of a conversation, as a context's record stores it, and a request to answer one. Plain
// structs shared by both workers, the encoder and the wire conversion.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/chat/tool_calls.h"
#include "engine/sampling/output_grammar.h"
#include "engine/sampling/sampler.h"
#include "engine/tokenizer/text.h"

namespace withy::engine {

// `text` is the source; token ids are a function of it. Roles: those of messages (chat/message.h),
// or "" for raw text that is given to the model unchanged.
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
  // Answers: the generated ids, if encoding `text` gives others; calls are part of them. Valid only
  // for the tokenizer with this fingerprint.
  std::vector<int32_t> token_ids = {};
  uint64_t tokenizer_fingerprint = 0;
  // Of an assistant: the tools that it calls, which are not in `text`.
  std::vector<ToolCall> tool_calls = {};
  // Of a tool's result: the tool's name ("": that of the call), and the id of the call.
  std::string name = {};
  std::string tool_call_id = {};
  // As in ChatOptions. The latest that are not empty hold for the whole conversation.
  std::string tools_json = {};
  std::string template_arguments_json = {};

  // The bytes of `text` that the model sees.
  std::string VisibleText() const;
  // Whether pruning removed the whole segment.
  bool LeftOut() const;
};

// What holds for a whole conversation: the latest that its segments say; "" where they say nothing.
struct ConversationSettings {
  std::string_view tools_json;
  std::string_view template_arguments_json;
};

// The result refers to `segments`.
ConversationSettings SettingsOf(std::span<const Segment> segments);

// Removes from `appended`, which follow `record`, settings that hold already.
void DropUnchangedSettings(std::span<const Segment> record, std::span<Segment> appended);

// What of a conversation the model sees.
enum class Truncation : uint8_t {
  // All but the oldest exchanges of the record that the window has no room for.
  kRecord,
  // All, as the messages say it: generated ids are not used, so that the ids depend on the messages
  // alone; but for those of answers with calls, where the template shows the same.
  kNone,
  // As kRecord, but the call's own messages may be left out, too, before the last exchange.
  kOldest,
};

// One call's request to a model.
struct AnswerRequest {
  std::vector<Segment> prompt;  // one raw segment, or messages
  SamplingParams sampling;
  int32_t max_tokens = 256;
  std::vector<std::string> stop;
  int32_t level_percent = 100;
  Truncation truncation = Truncation::kRecord;
  OutputFormat output_format = {};
  // Of `output_format`; null: the answer is free. Shared with other calls of the same form.
  std::shared_ptr<const OutputGrammar> grammar = nullptr;
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
