// Walks over an answer that may call tools: the steps that the forms of calls have in common.
// Neighbours: form.h; json_text.h finds where JSON ends.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/chat/tool_calls.h"

namespace withy::engine {

// Reads one call, or one group of calls. A Take function leaves what it does not take where it is;
// after a Read or Add function was false, nobody looks at the reader any more. Not thread-safe.
// Refers to the parser and to the text.
class CallReader {
 public:
  // `at`: index of the first byte to read.
  CallReader(const ToolCallParser& parser, std::string_view text, size_t at)
      : parser_(parser), text_(text), at_(at) {}

  const ToolCallParser& parser() const { return parser_; }
  size_t at() const { return at_; }
  std::vector<ToolCall>& calls() { return calls_; }  // that were read

  bool AtEnd() const;  // but for white space
  // Skips white space and returns the byte behind it; '\0' at the end.
  char Peek();

  bool Take(std::string_view what);
  bool TakeAfterSpaces(std::string_view what);
  // As TakeAfterSpaces; true at the end, too: an answer may end before its last marker.
  bool TakeOrEnd(std::string_view what);
  // Text up to `end`, which is taken, too.
  std::optional<std::string_view> TakeUntil(std::string_view end);
  // Text up to the first of these bytes, which is not taken.
  std::optional<std::string_view> TakeUpToAny(std::string_view bytes);
  // A JSON value.
  std::optional<std::string_view> TakeValue();

  // A call as a JSON object, or a list of calls.
  bool ReadJson();
  // ReadJson at least once, with ';' or nothing between.
  bool ReadSeveral();
  // A call whose name and arguments were read apart: as CallNamed.
  bool AddNamed(std::string_view name, std::string_view arguments);

 private:
  bool Add(std::optional<ToolCall> call);

  const ToolCallParser& parser_;
  const std::string_view text_;
  size_t at_;
  std::vector<ToolCall> calls_;
};

}  // namespace withy::engine
