// The tools that one answer may call. Neighbours: chat/tool_calls.h reads calls, conversation.h
// says which tools there are. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/chat/tool_calls.h"
#include "engine/session/answer_stream.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Immutable.
class AnswerTools {
 public:
  AnswerTools() = default;  // none
  AnswerTools(std::string_view tools_json, const Tokenizer& tokenizer);

  // Control tokens that calls are written with: an answer's text shows them.
  const std::vector<int32_t>& markers() const { return markers_; }

  // Takes apart an answer that ended for `reason`. Only an answer that the model itself ended calls
  // anything.
  AnswerParts Read(std::string_view text, FinishReason reason) const;

 private:
  std::optional<ToolCallParser> parser_;
  std::vector<int32_t> markers_;
};

}  // namespace withy::engine
