#include "orchestrator/openai/messages_answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/strings.h"

namespace withy::orchestrator {
namespace {

using MessagesJson = nlohmann::ordered_json;

std::string AsText(const MessagesJson& json) {
  return json.dump(-1, ' ', false, MessagesJson::error_handler_t::replace);
}

ServerEvent MessagesEvent(const char* type, const MessagesJson& members) {
  MessagesJson json = {{"type", type}};
  json.update(members);
  return {.name = type, .data = AsText(json)};
}

// Tokens that were read from the cache are not counted as input.
MessagesJson MessagesUsage(const v1::Usage& usage) {
  const uint32_t prompt = usage.context_tokens() + usage.prompt_tokens();
  const uint32_t reused = std::min(usage.reused_tokens(), prompt);
  return {{"input_tokens", prompt - reused},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", reused},
          {"output_tokens", usage.completion_tokens()}};
}

// Arguments that are no object, as models write them now and then, as the text that they are.
MessagesJson InputOf(const v1::ToolCall& call) {
  MessagesJson input = MessagesJson::parse(call.arguments_json(), nullptr, false);
  if (input.is_object()) return input;
  return {{"malformed_arguments", call.arguments_json()}};
}

const char* ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// `code` "": it has none.
std::string ErrorText(int http_status, std::string_view message, const std::string& code) {
  MessagesJson error = {{"type", ErrorType(http_status)}, {"message", std::string(message)}};
  if (!code.empty()) error["details"] = {{"error_code", code}};
  return AsText({{"type", "error"}, {"error", std::move(error)}});
}

}  // namespace

MessagesAnswer::MessagesAnswer(std::span<const OpenAiCall> choices, int64_t /*created_unix_s*/)
    : call_(choices.front()), text_(/*chat=*/true, call_.MayCallTools()) {}

MessagesJson MessagesAnswer::Message(OutJson content, OutJson reason,
                                     const v1::Usage& usage) const {
  return {{"id", absl::StrCat("msg_", CallId())},
          {"type", "message"},
          {"role", "assistant"},
          {"model", text_.started().model()},
          {"content", std::move(content)},
          {"stop_reason", std::move(reason)},
          {"stop_sequence", StopSequence()},
          {"usage", MessagesUsage(usage)}};
}

MessagesJson MessagesAnswer::StopReason() const {
  switch (text_.outcome().reason()) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_KV_FULL:
      return "max_tokens";
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "model_context_window_exceeded";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop_sequence";
    case v1::FINISH_REASON_TOOL_CALLS:
      return "tool_use";
    default:
      return "end_turn";
  }
}

// Which one it was is known where there is one.
MessagesJson MessagesAnswer::StopSequence() const {
  const auto& stop = call_.request.limits().stop();
  const bool stopped = text_.outcome().reason() == v1::FINISH_REASON_STOP_STRING;
  return stopped && stop.size() == 1 ? MessagesJson(stop[0]) : MessagesJson(nullptr);
}

void MessagesAnswer::BeginBlock(Block block, OutJson content, std::vector<ServerEvent>* sent) {
  EndBlock(sent);
  block_ = block;
  sent->push_back(MessagesEvent("content_block_start",
                                {{"index", blocks_++}, {"content_block", std::move(content)}}));
}

void MessagesAnswer::EndBlock(std::vector<ServerEvent>* sent) {
  if (std::exchange(block_, Block::kNone) == Block::kNone) return;
  sent->push_back(MessagesEvent("content_block_stop", {{"index", blocks_ - 1}}));
}

void MessagesAnswer::AddPieces(const std::vector<AnswerPiece>& pieces,
                               std::vector<ServerEvent>* sent) {
  for (const AnswerPiece& piece : pieces) {
    if (piece.text.empty()) continue;
    const Block block = piece.thought ? Block::kThinking : Block::kText;
    if (block_ != block) {
      BeginBlock(block,
                 piece.thought ? OutJson{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}
                               : OutJson{{"type", "text"}, {"text", ""}},
                 sent);
    }
    OutJson delta = piece.thought ? OutJson{{"type", "thinking_delta"}, {"thinking", piece.text}}
                                  : OutJson{{"type", "text_delta"}, {"text", piece.text}};
    sent->push_back(MessagesEvent("content_block_delta",
                                  {{"index", blocks_ - 1}, {"delta", std::move(delta)}}));
  }
}

std::vector<ServerEvent> MessagesAnswer::OnEvent(size_t /*choice*/,
                                                 const v1::GenerateResponse& event) {
  std::vector<ServerEvent> sent;
  if (event.has_delta()) {
    AddPieces(text_.Add(event.delta()), &sent);
  } else if (event.has_started() && text_.Start(event.started())) {
    const v1::Decision& decision = event.started().decision();
    v1::Usage expected;
    expected.set_prompt_tokens(decision.predicted_prompt_tokens() +
                               decision.predicted_reused_tokens());
    expected.set_reused_tokens(decision.predicted_reused_tokens());
    sent.push_back(MessagesEvent("message_start",
                                 {{"message", Message(OutJson::array(), nullptr, expected)}}));
  } else if (event.has_finished()) {
    AddPieces(text_.Finish(event.finished()), &sent);
    for (const v1::ToolCall& call : event.finished().tool_calls()) {
      BeginBlock(Block::kText,
                 {{"type", "tool_use"},
                  {"id", call.id()},
                  {"name", call.name()},
                  {"input", OutJson::object()}},
                 &sent);
      sent.push_back(MessagesEvent(
          "content_block_delta",
          {{"index", blocks_ - 1},
           {"delta", {{"type", "input_json_delta"}, {"partial_json", AsText(InputOf(call))}}}}));
    }
    EndBlock(&sent);
  }
  return sent;
}

std::vector<ServerEvent> MessagesAnswer::End() {
  return {
      MessagesEvent("message_delta",
                    {{"delta", {{"stop_reason", StopReason()}, {"stop_sequence", StopSequence()}}},
                     {"usage", MessagesUsage(text_.outcome().usage())}}),
      MessagesEvent("message_stop", OutJson::object())};
}

std::vector<ServerEvent> MessagesAnswer::Fail(const absl::Status& status) {
  return {{.name = "error", .data = MessagesError(status, "")}};
}

std::string MessagesAnswer::Document() const {
  OutJson content = OutJson::array();
  if (std::string thought = text_.Thought(); !thought.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", std::move(thought)}, {"signature", ""}});
  }
  const v1::Message said = text_.Said();
  if (!said.content().empty() || said.tool_calls().empty()) {
    content.push_back({{"type", "text"}, {"text", said.content()}});
  }
  for (const v1::ToolCall& call : said.tool_calls()) {
    content.push_back(
        {{"type", "tool_use"}, {"id", call.id()}, {"name", call.name()}, {"input", InputOf(call)}});
  }
  return AsText(Message(std::move(content), StopReason(), text_.outcome().usage()));
}

std::string MessagesTokens(uint32_t tokens) { return AsText({{"input_tokens", tokens}}); }

std::string MessagesError(const absl::Status& status, std::string_view /*prompt_field*/) {
  std::string param;
  const absl::optional<absl::Cord> code = status.GetPayload(kMessagesErrorCode);
  return ErrorText(HttpStatusOf(status), InOpenAiNames(ToStd(status.message()), &param),
                   code ? std::string(*code) : "");
}

std::string MessagesHttpError(int http_status, std::string_view message) {
  return ErrorText(http_status, message, "");
}

}  // namespace withy::orchestrator
