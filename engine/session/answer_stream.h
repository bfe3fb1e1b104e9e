// Turns sampled tokens into the text of an answer and detects its end: end of turn, stop string, or
// token limit. Neighbours: sampling/ picks the tokens, tokenizer/ decodes them. Runs no model.
//
//   AnswerStream answer(tokenizer, max_tokens, stops);
//   while (!answer.finished()) emit(answer.Push(NextToken()));
//   commit(answer.text(), answer.reason());
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/output/channels.h"
#include "engine/sampling/stop.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

enum class FinishReason {
  kNone,
  kEndOfTurn,
  kStopString,
  kMaxTokens,
  kContextFull,
  kKvFull,  // no memory for more tokens, and no call whose end would bring any
  kCancelled
};

// "end_of_turn", "stop_string", ...; used as metric labels.
std::string_view FinishReasonName(FinishReason reason);

// One answer. Not thread-safe; `tokenizer` must outlive it.
class AnswerStream {
 public:
  // `shown`: control tokens that are part of the text.
  AnswerStream(const Tokenizer& tokenizer, int32_t max_tokens, std::vector<std::string> stops,
               std::vector<int32_t> shown = {});

  // Before the first token: the prompt's.
  void BeginBehind(std::span<const int32_t> prompt);
  // Whether the answer comes in messages on channels. Its ids then are not those of its text.
  bool has_channels() const { return channels_.has_value(); }

  // Adds the next token and returns the text that can be shown now: whole characters, without text
  // that might begin a stop string. Must not be called once finished.
  std::string Push(int32_t id);
  // Ends the answer for an external reason (cancelled, window full); returns the text held back.
  std::string Finish(FinishReason reason);

  bool finished() const { return reason_ != FinishReason::kNone; }
  FinishReason reason() const { return reason_; }
  // All text that Push and Finish returned.
  const std::string& text() const { return text_; }
  // Tokens of the answer, without the token that ended the turn.
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::string Show(std::string text);

  const Tokenizer& tokenizer_;
  const int32_t max_tokens_;
  StreamDecoder decoder_;
  std::optional<Channels> channels_;
  StopMatcher stop_;
  FinishReason reason_ = FinishReason::kNone;
  std::string text_;
  std::vector<int32_t> ids_;
};

}  // namespace withy::engine
