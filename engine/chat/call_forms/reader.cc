#include "engine/chat/call_forms/reader.h"

#include <utility>

#include "engine/chat/call_forms/json_text.h"

namespace withy::engine {

bool CallReader::AtEnd() const { return SkipSpaces(text_, at_) == text_.size(); }

char CallReader::Peek() {
  at_ = SkipSpaces(text_, at_);
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool CallReader::Take(std::string_view what) {
  if (!text_.substr(at_).starts_with(what)) return false;
  at_ += what.size();
  return true;
}

bool CallReader::TakeAfterSpaces(std::string_view what) {
  const size_t before = at_;
  at_ = SkipSpaces(text_, at_);
  if (Take(what)) return true;
  at_ = before;
  return false;
}

bool CallReader::TakeOrEnd(std::string_view what) {
  if (TakeAfterSpaces(what)) return true;
  if (!AtEnd()) return false;
  at_ = text_.size();
  return true;
}

std::optional<std::string_view> CallReader::TakeUntil(std::string_view end) {
  const size_t found = text_.find(end, at_);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view text = text_.substr(at_, found - at_);
  at_ = found + end.size();
  return text;
}

std::optional<std::string_view> CallReader::TakeUpToAny(std::string_view bytes) {
  const size_t found = text_.find_first_of(bytes, at_);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view text = text_.substr(at_, found - at_);
  at_ = found;
  return text;
}

std::optional<std::string_view> CallReader::TakeValue() {
  const size_t begin = SkipSpaces(text_, at_);
  const size_t end = ValueEnd(text_, begin);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view value = text_.substr(begin, end - begin);
  if (!IsJson(value)) return std::nullopt;
  at_ = end;
  return value;
}

bool CallReader::ReadJson() {
  const char first = Peek();
  if (first != '{' && first != '[') return false;
  const std::optional<std::string_view> value = TakeValue();
  if (!value) return false;
  if (first == '{') return Add(CallOf(*value));
  size_t at = SkipSpaces(*value, 1);
  while (at < value->size() && (*value)[at] == '{') {
    const size_t end = ValueEnd(*value, at);
    if (!Add(CallOf(value->substr(at, end - at)))) return false;
    at = SkipSpaces(*value, end);
    if (at < value->size() && (*value)[at] == ',') at = SkipSpaces(*value, at + 1);
  }
  return at + 1 == value->size() && !calls_.empty();
}

bool CallReader::ReadSeveral() {
  do {
    if (!ReadJson()) return false;
    while (TakeAfterSpaces(";")) {
    }
  } while (Peek() == '{');
  return true;
}

bool CallReader::AddNamed(std::string_view name, std::string_view arguments) {
  return Add(CallNamed(name, arguments));
}

bool CallReader::Add(std::optional<ToolCall> call) {
  if (!call || calls_.size() >= kMaxToolCalls) return false;
  calls_.push_back(*std::move(call));
  return true;
}

}  // namespace withy::engine
