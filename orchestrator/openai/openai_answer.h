// Answers of OpenAI's HTTP API: JSON documents, and the chunks of a stream. Pure. Neighbours:
// openai_request.h reads requests, openai_error.h says errors, http_reply.h sends them.
//
// A thought before the answer (<think>) stands apart, as reasoning_content. What only withy knows
// stands beside OpenAI's fields in an object `withy`: the decision in the
// first chunk, what was measured in the last.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/openai/answer_text.h"
#include "orchestrator/openai/answer_writer.h"
#include "orchestrator/openai/echoed_prompt.h"
#include "orchestrator/openai/openai_request.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// For one thread.
class OpenAiAnswer : public AnswerWriter {
 public:
  // `choices`: as ChoicesOf; outlive it.
  OpenAiAnswer(std::span<const OpenAiCall> choices, int64_t created_unix_s);

  std::vector<ServerEvent> OnEvent(size_t choice, const v1::GenerateResponse& event) override;
  std::vector<ServerEvent> End() override;
  std::vector<ServerEvent> Fail(const absl::Status& status) override;
  std::string Document() const override;
  std::string CallId() const override { return first_.call_id(); }
  v1::Message Said(size_t choice) const override { return choices_[choice].text.Said(); }

 private:
  struct Choice {
    const OpenAiCall& call;
    AnswerText text;
    std::vector<v1::Token> tokens = {};  // with log-probabilities, if they were asked for
    std::vector<v1::Token> held = {};    // those of text that has not been sent
    CharacterCounter characters = {};    // that a completion's log-probabilities were sent for
  };

  std::vector<ServerEvent> OnStarted(Choice& choice, const v1::GenerateStarted& started);
  std::vector<ServerEvent> OnDelta(Choice& choice, const v1::GenerateDelta& delta);
  std::vector<ServerEvent> OnFinished(Choice& choice, const v1::GenerateFinished& outcome);
  // Chunks with text of the answer, and the log-probabilities held back so far.
  void AddText(Choice& choice, const std::vector<AnswerPiece>& pieces,
               std::vector<ServerEvent>* sent) const;
  nlohmann::ordered_json Usage() const;

  const int64_t created_unix_s_;
  v1::GenerateStarted first_;  // of the choices: all are told under its id
  std::vector<Choice> choices_;
};

// The documents of /v1/models/NAME and /v1/models.
std::string OpenAiModel(const v1::ModelDescription& model, int64_t created_unix_s);
std::string OpenAiModels(const v1::ListModelsResponse& models, int64_t created_unix_s);

}  // namespace withy::orchestrator
