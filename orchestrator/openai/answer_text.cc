#include "orchestrator/openai/answer_text.h"

#include <algorithm>

#include "engine/chat/thoughts.h"
#include "engine/chat/tool_calls.h"

namespace withy::orchestrator {

bool AnswerText::Start(const v1::GenerateStarted& started) {
  const bool first = started_.call_id().empty();
  started_ = started;
  return first;
}

size_t AnswerText::AddThought(std::string_view text, bool whole, std::vector<AnswerPiece>* pieces) {
  if (!chat_) return 0;
  const engine::ThoughtSpan span =
      engine::FindThought(text, started_.answer_begins_in_thought(), whole);
  const size_t from = std::max(span.begin, thought_sent_);
  if (span.thinks && span.end > from) {
    pieces->push_back({.thought = true, .text = std::string(text.substr(from, span.end - from))});
    thought_sent_ = span.end;
  }
  return span.answer;
}

std::vector<AnswerPiece> AnswerText::Add(const v1::GenerateDelta& delta) {
  text_ += delta.text();
  std::vector<AnswerPiece> pieces;
  const size_t answer = AddThought(text_, /*whole=*/false, &pieces);
  if (answer == engine::ThoughtSpan::kNotYet) return pieces;
  const size_t from = std::max(sent_bytes_, answer);
  const size_t end = may_call_ ? engine::ShownBeforeCalls(text_, from) : text_.size();
  if (end == from && may_call_) return pieces;
  pieces.push_back({.text = text_.substr(from, end - from)});
  sent_bytes_ = end;
  return pieces;
}

std::vector<AnswerPiece> AnswerText::Finish(const v1::GenerateFinished& outcome) {
  finished_ = true;
  outcome_ = outcome;
  std::vector<AnswerPiece> pieces;
  const std::string text = TextOutsideCalls();
  const size_t answer = std::max(AddThought(text, /*whole=*/true, &pieces), sent_bytes_);
  pieces.push_back({.text = text.substr(std::min(answer, text.size()))});
  return pieces;
}

std::string AnswerText::TextOutsideCalls() const {
  if (outcome_.tool_calls().empty()) return outcome_.text();
  std::vector<std::string> names;  // the tools of a context are not known here
  for (const v1::ToolCall& call : outcome_.tool_calls()) names.push_back(call.name());
  return engine::ToolCallParser(names).Parse(outcome_.text()).text;
}

v1::Message AnswerText::Said() const {
  v1::Message message;
  message.set_role("assistant");
  message.set_content(
      engine::WithoutThought(TextOutsideCalls(), started_.answer_begins_in_thought()));
  *message.mutable_tool_calls() = outcome_.tool_calls();
  return message;
}

std::string AnswerText::Thought() const {
  if (!chat_) return "";
  const std::string text = TextOutsideCalls();
  const engine::ThoughtSpan thought =
      engine::FindThought(text, started_.answer_begins_in_thought(), /*whole=*/true);
  return thought.thinks ? text.substr(thought.begin, thought.end - thought.begin) : "";
}

}  // namespace withy::orchestrator
