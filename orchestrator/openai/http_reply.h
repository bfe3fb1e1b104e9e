// The answer to one HTTP request: a document, an error, or events. Neighbours: http_door.cc decides
// what is answered, http/server.h sends it, openai_error.h says errors.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "http/server.h"
#include "orchestrator/openai/answer_writer.h"
#include "orchestrator/openai/openai_error.h"
#include "orchestrator/openai/web_origins.h"

namespace withy::orchestrator {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kConnectionCloses = "Connection: close\r\n";

// One whole response. `headers`: lines, each with its CR LF, among them that of Connection.
std::string HttpResponse(const http::RequestHead& head, int status, std::string_view body,
                         std::string_view headers, std::string_view type = kJsonType);

// For one thread.
class HttpReply {
 public:
  // Answers have the request's x-request-id, or a new one.
  HttpReply(http::Exchange& exchange, const WebOrigins& origins);

  // How errors are told; at first as in OpenAI's API.
  void TellErrorsBy(const ErrorForm& errors) { errors_ = &errors; }
  // Further headers, lines with their CR LF; asked for when a head is sent.
  void AddHeaders(std::function<std::string()> headers) { more_headers_ = std::move(headers); }

  void Respond(int status, std::string_view body, std::string_view headers = "",
               std::string_view type = kJsonType);
  // `prompt_field`: what the request calls its prompt, for errors about its length; "" for none.
  void RespondError(const absl::Status& status, std::string_view prompt_field = "");
  void RespondFailure(const http::Failure& failure);

  // Server-sent events. The head waits for the first one, so that a call that fails before has a
  // status of its own. False: the client did not take it.
  bool SendEvent(const ServerEvent& event, std::string_view call_id);
  void EndEvents();
  bool events_begun() const { return events_begun_; }

 private:
  std::string SharedHeaders() const {
    return more_headers_ ? shared_headers_ + more_headers_() : shared_headers_;
  }

  // Whether the connection stays open behind the answer is decided with its head.
  std::string ConnectionHeaders();
  void End(bool sent);

  http::Exchange& exchange_;
  const ErrorForm* errors_ = &kOpenAiErrors;
  const std::string shared_headers_;
  std::function<std::string()> more_headers_;  // empty: none
  bool events_begun_ = false;
  bool keeps_open_ = false;
};

}  // namespace withy::orchestrator
