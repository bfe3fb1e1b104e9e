// What an API of the HTTP door makes of a call's answers. Neighbours: openai_answer.h,
// messages_answer.h and responses_answer.h implement it; http_door.cc feeds it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// A server-sent event: a JSON document, or a word. `name` "": it has none.
struct ServerEvent {
  std::string name;
  std::string data;
};

// The answer to one request, which may have several choices; all but one API have one. For one
// thread.
//
//   for each choice: writer->OnEvent(choice, event) for each message of its Generate;
//   writer->End();
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Returns what a stream sends for this message.
  virtual std::vector<ServerEvent> OnEvent(size_t choice, const v1::GenerateResponse& event) = 0;
  // What a stream sends last.
  virtual std::vector<ServerEvent> End() = 0;
  // What a stream ends with that an error breaks off.
  virtual std::vector<ServerEvent> Fail(const absl::Status& status) = 0;
  // The whole answer, once all choices are finished: what a request without a stream gets.
  virtual std::string Document() const = 0;
  // Id of the first choice's call; "" before it has started.
  virtual std::string CallId() const = 0;
  // A finished choice as a message of the conversation.
  virtual v1::Message Said(size_t choice) const = 0;
};

}  // namespace withy::orchestrator
