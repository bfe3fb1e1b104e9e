// Answers of Anthropic's Messages API: the message, the events of a stream, and errors. Pure.
// Neighbours: messages_request.h reads requests, answer_text.h takes answers apart.
//
// A thought is a block of its own, `thinking`. Counts of tokens in the first event of a stream are
// those that were expected; the last one has what was measured.
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
#include "orchestrator/openai/openai_error.h"
#include "orchestrator/openai/openai_request.h"

namespace withy::orchestrator {

// For one thread.
class MessagesAnswer : public AnswerWriter {
 public:
  // `choices`: one.
  MessagesAnswer(std::span<const OpenAiCall> choices, int64_t created_unix_s);

  std::vector<ServerEvent> OnEvent(size_t choice, const v1::GenerateResponse& event) override;
  std::vector<ServerEvent> End() override;
  std::vector<ServerEvent> Fail(const absl::Status& status) override;
  std::string Document() const override;
  std::string CallId() const override { return text_.started().call_id(); }
  v1::Message Said(size_t /*choice*/) const override { return text_.Said(); }

 private:
  using OutJson = nlohmann::ordered_json;
  enum class Block { kNone, kThinking, kText };

  void AddPieces(const std::vector<AnswerPiece>& pieces, std::vector<ServerEvent>* sent);
  void BeginBlock(Block block, OutJson content, std::vector<ServerEvent>* sent);
  void EndBlock(std::vector<ServerEvent>* sent);
  // The message without content: `reason` null while it goes on.
  OutJson Message(OutJson content, OutJson reason, const v1::Usage& usage) const;
  OutJson StopReason() const;
  OutJson StopSequence() const;

  const OpenAiCall& call_;
  AnswerText text_;
  Block block_ = Block::kNone;  // that is open
  int blocks_ = 0;              // that were begun
};

// The document of models' tokens in a prompt.
std::string MessagesTokens(uint32_t tokens);

// Payload of a status whose error the API knows by a code of its own (error.details.error_code):
// clients go by it.
inline constexpr char kMessagesErrorCode[] = "withy/messages_error_code";

std::string MessagesError(const absl::Status& status, std::string_view prompt_field);
std::string MessagesHttpError(int http_status, std::string_view message);
inline constexpr ErrorForm kMessagesErrors = {.of_call = MessagesError,
                                              .of_http = MessagesHttpError};

}  // namespace withy::orchestrator
