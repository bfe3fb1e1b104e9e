// The answer of one call as the APIs of the HTTP door tell it: thought, text and calls of tools,
// also while it grows. Pure. Neighbours: answer_writer.h is implemented by each API; engine/chat/
// knows what thoughts and calls look like.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// A piece of an answer that can be shown.
struct AnswerPiece {
  bool thought = false;
  std::string text;
};

// Text that may be the beginning of a tool's call is held back until it is known. For one thread.
class AnswerText {
 public:
  // `chat`: thoughts are told apart. `may_call`: the answer may call tools.
  AnswerText(bool chat, bool may_call) : chat_(chat), may_call_(may_call) {}

  // False for a second one: the worker was replaced before the first token, and the answer begins
  // anew.
  bool Start(const v1::GenerateStarted& started);
  // What can be shown with this delta. An empty text: nothing of it is held back.
  std::vector<AnswerPiece> Add(const v1::GenerateDelta& delta);
  // What was held back; the last piece is text, perhaps empty.
  std::vector<AnswerPiece> Finish(const v1::GenerateFinished& outcome);

  bool finished() const { return finished_; }
  const v1::GenerateStarted& started() const { return started_; }
  const v1::GenerateFinished& outcome() const { return outcome_; }

  // --- Once it is finished.
  // As a message of the conversation: its text without thought and calls, and the calls.
  v1::Message Said() const;
  // "" for none.
  std::string Thought() const;

 private:
  // What of `text` is known to be thought is appended; returns where the answer begins.
  size_t AddThought(std::string_view text, bool whole, std::vector<AnswerPiece>* pieces);
  std::string TextOutsideCalls() const;

  const bool chat_;
  const bool may_call_;
  v1::GenerateStarted started_;
  v1::GenerateFinished outcome_;
  std::string text_;
  size_t sent_bytes_ = 0;    // of text_
  size_t thought_sent_ = 0;  // likewise: the end of what was sent of a thought
  bool finished_ = false;
};

}  // namespace withy::orchestrator
