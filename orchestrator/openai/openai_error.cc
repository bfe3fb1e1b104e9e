#include "orchestrator/openai/openai_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/strings.h"

namespace withy::orchestrator {
namespace {

using ErrorJson = nlohmann::ordered_json;

constexpr std::string_view kHeader = "header ";

// Beginnings of the contract's fields, and of what the engine calls them, before those that are
// beginnings of others.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"prompt.messages.tools_json", "tools"},
    {"prompt.messages.template_arguments_json", "chat_template_kwargs"},
    {"template arguments", "chat_template_kwargs"},
    {"prompt.messages", "messages"},
    {"prompt.text", "prompt"},
    {"output_format.json_schema", "response_format.json_schema.schema"},
    {"output_format.tool_calls.json_schema", "response_format.json_schema.schema"},
    {"output_format.tool_calls.tool", "tool_choice.function.name"},
    {"output_format.tool_calls", "tool_choice"},
    {"output_format.regex", "withy.regex"},
    {"output_format.grammar", "withy.grammar"},
    {"output_format", "response_format"},
    {"inputs", "input"},
    {"sampling.", ""},
    {"limits.", ""},
    {"slo.ttft_ratio", "header x-slo-ttft-ratio"},
    {"slo.tpot_ratio", "header x-slo-tpot-ratio"},
    {"slo.ttft_ms", "header x-slo-ttft-ms"},
    {"slo.tpot_ms", "header x-slo-tpot-ms"},
    {"slo.end_to_end_ms", "header x-slo-end-to-end-ms"},
    {"slo.energy_mj", "header x-slo-energy-mj"},
    {"priority", "header x-withy-priority"},
    {"request_id", "header idempotency-key"},
    {"context_id", "header x-withy-context"},
    {"model_level_percent", "header x-withy-model-level"},
    {"prompt_level_percent", "header x-withy-prompt-level"},
    {"speculation", "header x-withy-speculation"},
};

// First words of paths that are `param`.
constexpr std::string_view kFields[] = {"background",
                                        "best_of",
                                        "chat_template_kwargs",
                                        "conversation",
                                        "dimensions",
                                        "echo",
                                        "encoding_format",
                                        "frequency_penalty",
                                        "functions",
                                        "input",
                                        "instructions",
                                        "logit_bias",
                                        "logprobs",
                                        "max_completion_tokens",
                                        "max_output_tokens",
                                        "max_tokens",
                                        "messages",
                                        "min_p",
                                        "model",
                                        "n",
                                        "parallel_tool_calls",
                                        "presence_penalty",
                                        "previous_response_id",
                                        "prompt",
                                        "repetition_penalty",
                                        "response_format",
                                        "seed",
                                        "stop",
                                        "stream",
                                        "stream_options",
                                        "suffix",
                                        "temperature",
                                        "text",
                                        "tool_choice",
                                        "tools",
                                        "top_k",
                                        "top_logprobs",
                                        "top_p",
                                        "truncation",
                                        "withy"};

bool IsPathCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("_.[]-").find(c) != std::string_view::npos;
}

// How much of `text` is a path: "messages[0].role" of "messages[0].role is missing".
std::string_view LeadingPath(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), IsPathCharacter);
  std::string_view path = text.substr(0, static_cast<size_t>(end - text.begin()));
  while (path.ends_with('.')) path.remove_suffix(1);
  return path;
}

}  // namespace

std::string InOpenAiNames(std::string_view message, std::string* param) {
  std::string told(message);
  for (const auto& [ours, theirs] : kNames) {
    if (!message.starts_with(ours)) continue;
    const std::string_view rest = message.substr(ours.size());
    if (!ours.ends_with('.') && !rest.empty() && IsPathCharacter(rest.front()) &&
        rest.front() != '.' && rest.front() != '[') {
      continue;  // a longer word
    }
    told = absl::StrCat(ToAbsl(theirs), ToAbsl(rest));
    break;
  }
  param->clear();
  const bool header = told.starts_with(kHeader);
  std::string path(LeadingPath(std::string_view(told).substr(header ? kHeader.size() : 0)));
  if (header) {
    *param = std::move(path);
    return told;
  }
  const std::string root = path.substr(0, path.find_first_of(".["));
  if (std::find(std::begin(kFields), std::end(kFields), root) == std::end(kFields)) return told;
  const size_t length = path.size();
  if (root == "messages" && absl::StrContains(path, ".tool_calls[")) {
    path = absl::StrReplaceAll(
        path, {{"].arguments_json", "].function.arguments"}, {"].name", "].function.name"}});
    told.replace(0, length, path);
  }
  *param = std::move(path);
  return told;
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:  // clients send what gets 501 again
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kFailedPrecondition:
      return 412;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

namespace {

std::string ErrorDocument(std::string_view message, const char* type, const std::string& param,
                          const char* code) {
  const ErrorJson json = {{"error",
                           {{"message", std::string(message)},
                            {"type", type},
                            {"param", param.empty() ? ErrorJson(nullptr) : ErrorJson(param)},
                            {"code", code == nullptr ? ErrorJson(nullptr) : ErrorJson(code)}}}};
  return json.dump(-1, ' ', false, ErrorJson::error_handler_t::replace);
}

const char* CodeOf(const absl::Status& status, const std::string& param) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return param.empty() ? nullptr : "invalid_value";
    case absl::StatusCode::kUnauthenticated:
      return "invalid_api_key";
    case absl::StatusCode::kOutOfRange:
      return "context_length_exceeded";
    case absl::StatusCode::kUnimplemented:
      return "unsupported";
    case absl::StatusCode::kNotFound:
      return param == "model" ? "model_not_found" : "not_found";
    case absl::StatusCode::kFailedPrecondition:
      return "slo_unattainable";
    case absl::StatusCode::kResourceExhausted:
      return "rate_limit_exceeded";
    default:
      return nullptr;
  }
}

}  // namespace

std::string OpenAiError(const absl::Status& status, std::string_view prompt_field) {
  std::string param;
  std::string message = InOpenAiNames(ToStd(status.message()), &param);
  if (absl::IsOutOfRange(status)) {
    if (param.empty()) param = std::string(prompt_field);
    // Libraries tell by these words that the conversation must become shorter.
    if (!absl::StrContains(message, "maximum context length")) {
      absl::StrAppend(&message, " (this model's maximum context length is exceeded)");
    }
  }
  const char* type = absl::IsResourceExhausted(status) ? "rate_limit_error"
                     : HttpStatusOf(status) >= 500     ? "server_error"
                                                       : "invalid_request_error";
  return ErrorDocument(message, type, param, CodeOf(status, param));
}

std::string OpenAiHttpError(int http_status, std::string_view message) {
  const bool too_long = http_status == 413;
  return ErrorDocument(
      too_long
          ? absl::StrCat(ToAbsl(message), ", more than the maximum context length of any model has")
          : std::string(message),
      http_status >= 500 ? "server_error" : "invalid_request_error", "",
      too_long ? "context_length_exceeded" : nullptr);
}

}  // namespace withy::orchestrator
