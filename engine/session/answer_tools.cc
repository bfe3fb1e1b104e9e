#include "engine/session/answer_tools.h"

namespace withy::engine {

AnswerTools::AnswerTools(std::string_view tools_json, const Tokenizer& tokenizer) {
  if (IsEmptyJson(tools_json)) return;
  parser_.emplace(tools_json);
  for (const std::string_view marker : CallMarkers()) {
    const std::optional<int32_t> id = tokenizer.FindToken(marker);
    if (id && tokenizer.IsControl(*id)) markers_.push_back(*id);
  }
}

AnswerParts AnswerTools::Read(std::string_view text, FinishReason reason) const {
  if (!parser_ || reason != FinishReason::kEndOfTurn) {
    return {.text = std::string(text), .calls = {}};
  }
  return parser_->Parse(text);
}

}  // namespace withy::engine
