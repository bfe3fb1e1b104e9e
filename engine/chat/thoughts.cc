#include "engine/chat/thoughts.h"

#include <algorithm>

namespace withy::engine {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

size_t BehindSpaces(std::string_view text, size_t from) {
  return std::min(text.find_first_not_of(kWhiteSpace, from), text.size());
}

// How much of the end of `text` may be the beginning of `tag`.
size_t HeldBack(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(tag.size() - 1, text.size()); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

ThoughtSpan FindThought(std::string_view answer, bool begun, bool whole) {
  ThoughtSpan span;
  const size_t first = BehindSpaces(answer, 0);
  const std::string_view text = answer.substr(first);
  if (!whole && text.size() < kThoughtBegin.size() && kThoughtBegin.starts_with(text)) {
    span.answer = ThoughtSpan::kNotYet;
    return span;
  }
  const bool tagged = text.starts_with(kThoughtBegin);  // by some although the prompt has it
  if (!begun && !tagged) return span;
  span.thinks = true;
  const size_t from = tagged ? first + kThoughtBegin.size() : first;
  const size_t tag = answer.find(kThoughtEnd, from);
  size_t stop = tag;
  if (tag == std::string_view::npos) {
    stop = std::max(from, answer.size() - (whole ? 0 : HeldBack(answer, kThoughtEnd)));
    span.answer = whole ? answer.size() : ThoughtSpan::kNotYet;
  } else {
    span.answer = BehindSpaces(answer, tag + kThoughtEnd.size());
    if (span.answer == answer.size() && !whole) span.answer = ThoughtSpan::kNotYet;
  }
  span.begin = std::min(BehindSpaces(answer, from), stop);
  span.end = stop;
  while (span.end > span.begin &&
         kWhiteSpace.find(answer[span.end - 1]) != std::string_view::npos) {
    --span.end;
  }
  return span;
}

std::string WithoutThought(std::string_view answer, bool begun) {
  return std::string(answer.substr(FindThought(answer, begun, /*whole=*/true).answer));
}

}  // namespace withy::engine
