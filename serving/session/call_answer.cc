#include "serving/session/call_answer.h"

#include <utility>

#include "base/status.h"
#include "engine/chat/thoughts.h"

namespace withy::serving {

CallAnswer::CallAnswer(const engine::Tokenizer& tokenizer, const CallRequest& request,
                       engine::Sampler sampler, engine::AnswerTools tools,
                       telemetry::Recorder* recorder)
    : tokenizer_(tokenizer),
      request_(request),
      recorder_(recorder),
      sampler_(std::move(sampler)),
      tools_(std::move(tools)),
      stream_(tokenizer, request.answer.max_tokens, request.answer.stop, tools_.markers()),
      constraint_(
          std::make_unique<engine::OutputConstraint>(request.answer.grammar.get(), tokenizer)) {}

void CallAnswer::BeginBehind(std::span<const int32_t> prompt) {
  sampler_.BeginAnswer(static_cast<int32_t>(prompt.size()));
  stream_.BeginBehind(prompt);
  constraint_->BeginBehind(prompt);
}

absl::StatusOr<engine::AnswerDelta> CallAnswer::Pick(std::span<const float> logits,
                                                     int32_t level_percent, int32_t window,
                                                     std::vector<int32_t>* ids) {
  const bool timed = recorder_ != nullptr && recorder_->enabled();
  engine::PickTimes times;
  if (timed) times.clock = recorder_->clock();
  WITHY_ASSIGN_OR_RETURN(const std::span<const uint32_t> allowed, constraint_->Mask());
  WITHY_ASSIGN_OR_RETURN(engine::Sample sample, sampler_.Pick(logits, ids->size(), *ids,
                                                              timed ? &times : nullptr, allowed));
  if (timed) RecordPick(times);
  engine::AnswerDelta delta;
  delta.text = stream_.Push(sample.id);
  if (stream_.reason() == engine::FinishReason::kEndOfTurn) return delta;
  ids->push_back(sample.id);
  constraint_->Accept(sample.id);
  tokens_.push_back(sample);
  if (levels_.empty() || levels_.back() != level_percent) levels_.push_back(level_percent);
  delta.token = std::move(sample);
  if (!finished() && constraint_->Over()) {
    delta.text += stream_.Finish(engine::FinishReason::kEndOfTurn);
  }
  if (!finished() && static_cast<int32_t>(ids->size()) >= window) {
    delta.text += stream_.Finish(engine::FinishReason::kContextFull);
  }
  return delta;
}

// The parts of sampling that this token needed.
void CallAnswer::RecordPick(const engine::PickTimes& times) const {
  telemetry::Span span;
  span.call_id = request_.call_id;
  span.sequence = static_cast<uint32_t>(tokens_.size());
  span.clock = telemetry::ClockOf(times.clock);
  const auto record = [&](telemetry::Phase phase, int64_t started, int64_t ended) {
    if (started == 0) return;
    span.name = static_cast<uint16_t>(phase);
    span.started_ns = started;
    span.ended_ns = ended;
    recorder_->Record(span);
  };
  record(telemetry::Phase::kCopyProbs, times.copy_started, times.copy_ended);
  record(telemetry::Phase::kSoftmax, times.softmax_started, times.softmax_ended);
}

engine::AnswerDelta CallAnswer::Finish(engine::FinishReason reason) {
  return {.text = stream_.Finish(reason), .token = std::nullopt};
}

engine::AnswerParts CallAnswer::InParts() const {
  engine::AnswerParts parts = tools_.Read(stream_.text(), stream_.reason());
  engine::GiveIds(request_.call_id, &parts.calls);
  return parts;
}

engine::Segment CallAnswer::RecordSegment(int32_t level_percent, int64_t unix_s) const {
  engine::Segment segment;
  segment.role = "assistant";
  engine::AnswerParts parts = InParts();
  const size_t whole_bytes = parts.text.size();
  // The next prompt has the answer's own message alone, not the tokens of all channels.
  if (request_.record_without_thought || stream_.has_channels()) {
    parts.text = engine::WithoutThought(parts.text, begins_in_thought_);
  }
  const bool whole = parts.text.size() == whole_bytes && !stream_.has_channels();
  segment.text = std::move(parts.text);
  segment.tool_calls = std::move(parts.calls);
  segment.level_percent = level_percent;
  segment.cancelled = stream_.reason() == engine::FinishReason::kCancelled ||
                      stream_.reason() == engine::FinishReason::kKvFull;
  segment.ended = stream_.reason() == engine::FinishReason::kEndOfTurn;
  segment.unix_s = unix_s;
  // A stop string cuts the text between or within generated tokens: then only the text is kept.
  // Calls are not in the text, and so always in the ids; nor is a thought that is left out.
  if (whole && stream_.reason() != engine::FinishReason::kStopString &&
      tokenizer_.Encode(segment.text, {.add_bos = false, .continues = true}) != stream_.ids()) {
    segment.token_ids = stream_.ids();
    segment.tokenizer_fingerprint = tokenizer_.fingerprint();
  }
  return segment;
}

void CallAnswer::Describe(CallOutcome* outcome) const {
  outcome->reason = stream_.reason();
  outcome->text = stream_.text();
  outcome->begins_in_thought = begins_in_thought_;
  outcome->tool_calls = InParts().calls;
  outcome->sampling = request_.answer.sampling;
  outcome->tokens = tokens_;
  outcome->levels_percent = levels_;
  outcome->decided_percent = request_.answer.level_percent;
}

}  // namespace withy::serving
