// A prompt that a completion repeats with the log-probabilities of its tokens (`echo` with
// `logprobs`): how evaluation harnesses score texts. Neighbours: score.h asks the worker,
// openai_answer.h shows what comes out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// The tokens of a text out of those that were scored, which lack the first one where nothing
// precedes the text. Together their texts are the prompt. The first one has no log-probability, as
// in OpenAI's API: not even where the beginning of a text tells one.
std::vector<v1::Token> EchoedTokens(std::string_view prompt, std::vector<v1::Token> scored);

// Counts the characters of a text that comes in pieces, which may cut them.
class CharacterCounter {
 public:
  // Characters that are whole.
  size_t whole() const { return begun_ - (missing_ > 0 ? 1 : 0); }
  void Add(std::string_view bytes);

 private:
  size_t begun_ = 0;
  int missing_ = 0;  // bytes of the last character
};

}  // namespace withy::orchestrator
