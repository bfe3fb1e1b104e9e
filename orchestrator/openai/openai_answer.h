// Answers of OpenAI's HTTP API: JSON documents, and the chunks of a stream. Pure. Neighbours:
// openai_request.h reads requests, openai_error.h says errors, http_reply.h sends them.
//
// A thought before the answer (<think>) stands apart, as reasoning_content. What only withy knows
// stands beside OpenAI's fields in an object `withy`: the decision in the
// first chunk, what was measured in the last.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/openai/echoed_prompt.h"
#include "orchestrator/openai/openai_request.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Builds the answer to one call out of the messages of its Generate. Text that may be the beginning
// of a tool's call is held back until it is known. For one thread.
class OpenAiAnswer {
 public:
  OpenAiAnswer(const OpenAiCall& call, int64_t created_unix_s);

  // The prompt's tokens, which a completion repeats with their log-probabilities. Before all
  // events.
  void EchoPrompt(std::vector<v1::Token> tokens);

  // Takes the next message. Returns what a stream sends for it, each text one JSON document
  // ("data:" is not included); empty for nothing.
  std::vector<std::string> OnEvent(const v1::GenerateResponse& event);
  // The whole answer, once `finished` has come: what a call without a stream gets.
  std::string Document() const;
  // Whether `finished` has come.
  bool finished() const { return finished_; }
  const v1::GenerateStarted& started() const { return started_; }
  // The answer as a message of the conversation, once `finished` has come: its text without thought
  // and calls, and the calls.
  v1::Message Said() const;

 private:
  std::vector<std::string> OnDelta(const v1::GenerateDelta& delta);
  std::vector<std::string> OnFinished();
  // A chunk with text of the answer, and the log-probabilities held back so far.
  std::string TextChunk(const char* field, std::string_view text);
  size_t SendThought(std::string_view text, bool whole, std::vector<std::string>* sent);
  std::string TextOutsideCalls() const;

  const OpenAiCall& call_;
  const int64_t created_unix_s_;
  v1::GenerateStarted started_;
  v1::GenerateFinished outcome_;
  std::vector<v1::Token> tokens_;  // with log-probabilities, if they were asked for
  std::vector<v1::Token> held_;    // those of text that has not been sent
  std::vector<v1::Token> prompt_tokens_;
  CharacterCounter characters_;  // that a completion's log-probabilities were sent for
  std::string text_;
  size_t sent_bytes_ = 0;    // of text_
  size_t thought_sent_ = 0;  // likewise: the end of what was sent of a thought
  bool finished_ = false;
};

// The documents of /v1/models/NAME and /v1/models.
std::string OpenAiModel(const v1::ModelDescription& model, int64_t created_unix_s);
std::string OpenAiModels(const v1::ListModelsResponse& models, int64_t created_unix_s);

}  // namespace withy::orchestrator
