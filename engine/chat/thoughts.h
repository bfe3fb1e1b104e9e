// Thoughts of reasoning models: what stands between <think> and </think> at an answer's beginning.
// Pure. Neighbours: message.h says whether a prompt has begun one, tool_calls.h reads what is
// behind.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace withy::engine {

inline constexpr std::string_view kThoughtBegin = "<think>";
inline constexpr std::string_view kThoughtEnd = "</think>";

// Where the parts of an answer are, as far as it has come.
struct ThoughtSpan {
  static constexpr size_t kNotYet = std::string_view::npos;

  bool thinks = false;
  size_t begin = 0;  // bytes [begin, end) are the thought, without white space at both ends
  size_t end = 0;
  size_t answer = 0;  // first byte behind it, and behind white space; kNotYet: has not come
};

// `begun`: the prompt has begun the thought. `whole`: nothing of the answer is to come; else what
// may belong to a tag, and white space at the thought's end, is not in the span yet. As the answer
// grows, `end` does, and what is known stays.
ThoughtSpan FindThought(std::string_view answer, bool begun, bool whole);

// The whole answer without its thought.
std::string WithoutThought(std::string_view answer, bool begun);

}  // namespace withy::engine
