#include "engine/session/answer_stream.h"

#include <utility>

namespace withy::engine {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kEndOfTurn:
      return "end_of_turn";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kMaxTokens:
      return "max_tokens";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kKvFull:
      return "kv_full";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

AnswerStream::AnswerStream(const Tokenizer& tokenizer, int32_t max_tokens,
                           std::vector<std::string> stops, std::vector<int32_t> shown)
    : tokenizer_(tokenizer),
      max_tokens_(max_tokens),
      decoder_(tokenizer, std::move(shown)),
      channels_(Channels::Of(tokenizer)),
      stop_(std::move(stops)) {}

void AnswerStream::BeginBehind(std::span<const int32_t> prompt) {
  if (channels_) channels_->BeginBehind(prompt);
}

std::string AnswerStream::Show(std::string text) {
  text_ += text;
  return text;
}

std::string AnswerStream::Push(int32_t id) {
  if (tokenizer_.IsEndOfGeneration(id)) return Finish(FinishReason::kEndOfTurn);
  ids_.push_back(id);
  std::string text = decoder_.Push(id);
  if (channels_) text = channels_->Push(id, std::move(text));
  std::string shown = Show(stop_.Push(text));
  if (stop_.stopped()) {
    reason_ = FinishReason::kStopString;
  } else if (static_cast<int32_t>(ids_.size()) >= max_tokens_) {
    shown += Finish(FinishReason::kMaxTokens);
  }
  return shown;
}

std::string AnswerStream::Finish(FinishReason reason) {
  std::string text = decoder_.Flush();
  if (channels_) text = channels_->Push(kNoToken, std::move(text)) + channels_->Finish();
  std::string rest = stop_.Push(text);
  reason_ = stop_.stopped() ? FinishReason::kStopString : reason;
  if (!stop_.stopped()) rest += stop_.Flush();
  return Show(std::move(rest));
}

}  // namespace withy::engine
