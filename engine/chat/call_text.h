// How a model writes calls of tools: what its chat template shows of calls, taken apart, so that an
// answer can be held to that form. Pure. Neighbours: tool_calls.h reads calls of every known form;
// grammar/compiler.h makes a grammar of what is found here.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/chat/file_template.h"

namespace withy::engine {

// An answer is `begin` NAME `middle` ARGUMENTS, then `between` NAME `middle` ARGUMENTS for each
// further call, then `end`. ToolCallParser reads every such text as these calls and nothing else.
// Default: the form without markers, {"name": NAME, "arguments": ARGUMENTS}.
struct CallText {
  // Stands in the texts for the id of a call: kCallIdCharacters letters and digits.
  static constexpr char kCallId = '\x1f';
  static constexpr int kCallIdCharacters = 9;

  std::string begin = R"({"name": ")";
  std::string middle = R"(", "arguments": )";
  std::string between = {};  // "": an answer has one call only
  std::string end = "}";

  bool operator==(const CallText&) const = default;
};

// As `chat` shows calls; the default for null, and for a template whose calls are of no known form
// or have arguments that are no JSON object. `turn_ends`: texts of the tokens that end an answer.
CallText CallTextOf(const FileTemplate* chat, std::span<const std::string> turn_ends);

}  // namespace withy::engine
