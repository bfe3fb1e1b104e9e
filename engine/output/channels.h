// Channels of an answer (OpenAI's harmony format): messages that each say in a header whom they are
// for, as <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
// What is thought and what is called is told as other models write it, with <think> and
// <tool_call>, so that nobody else knows of channels. Neighbours: output_constraint.h waits for the
// answer's own message; session/answer_stream.h shows what this gives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// One answer. Not thread-safe.
class Channels {
 public:
  // None unless the vocabulary has the format's control tokens.
  static std::optional<Channels> Of(const Tokenizer& tokenizer);

  // The prompt's tokens: the answer may go on within a header or a message.
  void BeginBehind(std::span<const int32_t> prompt);

  // The answer's next token, and the text that it completes. Returns what is shown: a header is
  // not; what precedes any header is.
  std::string Push(int32_t id, std::string text);
  // The end of the answer; returns what closes a call.
  std::string Finish();

  // Whether what comes next is for the user or a tool.
  bool InAnswer() const { return place_ == Place::kAnswer || place_ == Place::kCall; }

 private:
  enum class Place : uint8_t { kHeader, kThought, kAnswer, kCall, kHidden };

  // What the message behind the header begins with.
  std::string Begin();
  std::string CloseThought();
  // Text that was taken for a header before any channel was named.
  std::string NoHeader();

  int32_t start_ = 0;
  int32_t channel_ = 0;
  int32_t message_ = 0;
  int32_t end_ = 0;
  Place place_ = Place::kAnswer;
  bool thinks_ = false;    // <think> was shown, its end was not
  bool answered_ = false;  // some message was for the user or a tool
  std::string header_;     // a line break stands for <|channel|>
};

}  // namespace withy::engine
