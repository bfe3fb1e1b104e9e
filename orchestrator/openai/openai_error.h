// Errors of OpenAI's HTTP API: {"error": {"message", "type", "param", "code"}}. Pure. Neighbours:
// validate.h names fields as the contract does; http_reply.h sends what is made here.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace withy::orchestrator {

int HttpStatusOf(const absl::Status& status);

// The document. A field that the message begins with gets its name in OpenAI's API, and is `param`.
// `prompt_field`: what the request calls its prompt ("messages"), for an error about its length; ""
// where there is none.
std::string OpenAiError(const absl::Status& status, std::string_view prompt_field = "");
// That of an error of HTTP itself.
std::string OpenAiHttpError(int http_status, std::string_view message);

// How an API tells errors.
struct ErrorForm {
  std::string (*of_call)(const absl::Status& status, std::string_view prompt_field);
  std::string (*of_http)(int http_status, std::string_view message);
};
inline constexpr ErrorForm kOpenAiErrors = {.of_call = OpenAiError, .of_http = OpenAiHttpError};

// `message` with OpenAI's name of the field that it begins with, which is put into `param`; "" if
// it begins with none.
std::string InOpenAiNames(std::string_view message, std::string* param);

}  // namespace withy::orchestrator
