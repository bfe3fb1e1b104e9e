#include "serving/session/call_text.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace withy::serving {

absl::StatusOr<engine::EncodedConversation> CallText::Encode(
    int32_t window, const engine::CancelCheck* cancelled) const {
  std::vector<engine::Segment> segments = record_;
  const engine::AnswerRequest& asked = request_.answer;
  segments.insert(segments.end(), asked.prompt.begin(), asked.prompt.end());
  if (!request_.rebuild) {
    return encoder_.EncodePrompt(segments, window, record_.size(), cancelled, asked.truncation);
  }
  WITHY_ASSIGN_OR_RETURN(engine::EncodedConversation encoded,
                         encoder_.EncodeRecord(segments, window, cancelled));
  encoded.history_tokens = encoded.stable_tokens = static_cast<int32_t>(encoded.ids.size());
  return encoded;
}

std::vector<engine::Segment> CallText::Appended(const CallTokens& tokens, engine::Segment answer,
                                                int64_t unix_s) const {
  std::vector<engine::Segment> appended = request_.answer.prompt;
  engine::DropUnchangedSettings(record_, appended);
  for (engine::Segment& segment : appended) {
    segment.unix_s = unix_s;
    segment.level_percent = tokens.levels.At(tokens.prompt_end - 1);
  }
  appended.push_back(std::move(answer));
  return appended;
}

CallText::NextRecord CallText::Measure(std::span<const engine::Segment> appended,
                                       const CallTokens& tokens, int32_t computed) const {
  std::vector<engine::Segment> record = record_;
  record.insert(record.end(), appended.begin(), appended.end());
  const auto encoded = encoder_.EncodeRecord(record, tokens.window, /*cancelled=*/nullptr,
                                             request_.answer.truncation);
  if (!encoded.ok()) return {.context_tokens = tokens.count()};
  const std::vector<int32_t>& ids = encoded->ids;
  const auto limit = std::min(ids.size(), static_cast<size_t>(computed));
  const auto end = tokens.ids.begin() + static_cast<int64_t>(limit);
  const auto differs = std::mismatch(tokens.ids.begin(), end, ids.begin()).first;
  return {.context_tokens = static_cast<int32_t>(ids.size()),
          .dropped_segments = encoded->dropped_segments,
          .kept_tokens = static_cast<int32_t>(differs - tokens.ids.begin())};
}

}  // namespace withy::serving
