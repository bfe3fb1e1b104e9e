// Answers of OpenAI's Responses API: the response, and the events of a stream. Pure. Neighbours:
// responses_request.h reads requests, answer_text.h takes answers apart.
//
// The output is a thought (an item `reasoning`), a message, and calls of functions, each where the
// answer has it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "orchestrator/openai/answer_text.h"
#include "orchestrator/openai/answer_writer.h"
#include "orchestrator/openai/openai_request.h"

namespace withy::orchestrator {

// For one thread.
class ResponsesAnswer : public AnswerWriter {
 public:
  // `choices`: one, of ParseResponsesCall.
  ResponsesAnswer(std::span<const OpenAiCall> choices, int64_t created_unix_s);

  std::vector<ServerEvent> OnEvent(size_t choice, const v1::GenerateResponse& event) override;
  std::vector<ServerEvent> End() override;
  std::vector<ServerEvent> Fail(const absl::Status& status) override;
  std::string Document() const override;
  std::string CallId() const override { return text_.started().call_id(); }
  v1::Message Said(size_t /*choice*/) const override { return text_.Said(); }

 private:
  using OutJson = OrderedJson;  // finds members by an index: what was asked is echoed
  using Events = std::vector<ServerEvent>;
  enum class Item { kNone, kReasoning, kMessage };

  void Add(const char* type, const OutJson& members, Events* sent);
  void AddPieces(const std::vector<AnswerPiece>& pieces, Events* sent);
  void BeginItem(Item item, Events* sent);
  void EndItem(Events* sent);
  void AddCall(const v1::ToolCall& call, Events* sent);
  // "completed", or "incomplete" for an answer that was cut.
  const char* Status() const;
  OutJson Reasoning(const std::string& text, const char* status) const;
  OutJson Message(OutJson content, const char* status) const;
  OutJson Call(const v1::ToolCall& call) const;
  OutJson Output() const;
  OutJson Response(const char* status, OutJson output) const;

  const OpenAiCall& call_;
  const int64_t created_unix_s_;
  AnswerText text_;
  int sequence_ = 0;         // of the next event
  Item item_ = Item::kNone;  // that is open
  std::string item_text_;
  int items_ = 0;  // that were begun
};

}  // namespace withy::orchestrator
