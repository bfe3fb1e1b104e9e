#include "orchestrator/openai/messages_request.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "orchestrator/openai/messages_answer.h"
#include "orchestrator/openai/request_json.h"

namespace withy::orchestrator {
namespace {

using Json = OrderedJson;
using body::Find;
using body::Flag;
using body::Text;
using body::TextOfParts;
using body::Wrong;
using body::WrongType;

constexpr std::string_view kTextBlock[] = {"text"};

// {"id", "name", "input"} as a call.
absl::StatusOr<Json> CallOfBlock(const Json& block, const std::string& name) {
  const Json* input = Find(block, "input");
  if (input != nullptr && !input->is_object()) {
    return WrongType(name + ".input", *input, "an object");
  }
  WITHY_ASSIGN_OR_RETURN(std::string id, Text(block, name + ".", "id"));
  WITHY_ASSIGN_OR_RETURN(std::string tool, Text(block, name + ".", "name"));
  return Json{
      {"id", std::move(id)},
      {"type", "function"},
      {"function",
       {{"name", std::move(tool)}, {"arguments", input == nullptr ? "{}" : input->dump()}}}};
}

// {"tool_use_id", "content", "is_error"} as a tool's message.
absl::StatusOr<Json> ResultOfBlock(const Json& block, const std::string& name) {
  WITHY_ASSIGN_OR_RETURN(std::string id, Text(block, name + ".", "tool_use_id"));
  std::string text;
  if (const Json* content = Find(block, "content")) {
    WITHY_ASSIGN_OR_RETURN(text, TextOfParts(*content, name + ".content", kTextBlock));
  }
  return Json{{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(text)}};
}

// A turn's blocks become one message, behind the results of tools that it has.
absl::Status AddTurn(const std::string& role, const Json& blocks, const std::string& field,
                     Json* messages) {
  Json calls = Json::array();
  std::string text;
  bool has_text = false;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    if (!blocks[i].is_object()) return WrongType(name, blocks[i], "an object");
    WITHY_ASSIGN_OR_RETURN(const std::string type, Text(blocks[i], name + ".", "type"));
    if (type == "text") {
      WITHY_ASSIGN_OR_RETURN(const std::string piece, Text(blocks[i], name + ".", "text"));
      text += piece;
      has_text = true;
    } else if (type == "tool_use" && role == "assistant") {
      WITHY_ASSIGN_OR_RETURN(Json call, CallOfBlock(blocks[i], name));
      calls.push_back(std::move(call));
    } else if (type == "tool_result" && role == "user") {
      WITHY_ASSIGN_OR_RETURN(Json result, ResultOfBlock(blocks[i], name));
      messages->push_back(std::move(result));
    } else if (type != "thinking" && type != "redacted_thinking") {
      return Wrong(name, absl::StrCat(".type is \"", type, "\", which a message of the ", role,
                                      " cannot have: the model reads text, tool_use of the "
                                      "assistant and tool_result of the user"));
    }
  }
  if (!has_text && calls.empty() && role == "user") return absl::OkStatus();
  Json message = {{"role", role}, {"content", std::move(text)}};
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages->push_back(std::move(message));
  return absl::OkStatus();
}

absl::Status ReadTurns(const Json& given, Json* messages) {
  if (const Json* system = Find(given, "system")) {
    WITHY_ASSIGN_OR_RETURN(std::string text, TextOfParts(*system, "system", kTextBlock));
    if (!text.empty()) messages->push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const Json* turns = Find(given, "messages");
  if (turns == nullptr || !turns->is_array() || turns->empty()) {
    return Wrong("messages", " must be an array of at least one message");
  }
  for (size_t i = 0; i < turns->size(); ++i) {
    const Json& turn = (*turns)[i];
    const std::string field = absl::StrCat("messages[", i, "]");
    if (!turn.is_object()) return WrongType(field, turn, "an object");
    WITHY_ASSIGN_OR_RETURN(const std::string role, Text(turn, field + ".", "role"));
    // Between turns a system message changes the instructions.
    if (role != "user" && role != "assistant" && (role != "system" || i == 0)) {
      return Wrong(field, absl::StrCat(".role is \"", role,
                                       "\": it must be \"user\" or \"assistant\"; instructions "
                                       "belong in system"));
    }
    const Json* content = Find(turn, "content");
    if (content == nullptr) return Wrong(field, ".content is missing");
    if (content->is_string()) {
      messages->push_back({{"role", role}, {"content", *content}});
      continue;
    }
    if (!content->is_array()) {
      return WrongType(field + ".content", *content, "a string or an array of blocks");
    }
    WITHY_RETURN_IF_ERROR(AddTurn(role, *content, field + ".content", messages));
  }
  return absl::OkStatus();
}

absl::Status ReadMessagesTools(const Json& given, Json* chat) {
  const Json* tools = Find(given, "tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) return WrongType("tools", *tools, "an array");
  Json told = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string name = absl::StrCat("tools[", i, "]");
    if (!tool.is_object()) return WrongType(name, tool, "an object");
    WITHY_ASSIGN_OR_RETURN(const std::string type, Text(tool, name + ".", "type"));
    if (!type.empty() && type != "custom") {
      return Wrong(name, absl::StrCat(".type is \"", type,
                                      "\": there are no tools but those that the client runs"));
    }
    Json function = Json::object();
    for (const auto& [theirs, ours] :
         {std::pair("name", "name"), std::pair("strict", "strict"),
          std::pair("description", "description"), std::pair("input_schema", "parameters")}) {
      if (const Json* member = Find(tool, theirs)) function[ours] = *member;
    }
    told.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  (*chat)["tools"] = std::move(told);
  return absl::OkStatus();
}

absl::Status ReadMessagesChoice(const Json& given, Json* chat) {
  const Json* choice = Find(given, "tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  if (!choice->is_object()) return WrongType("tool_choice", *choice, "an object");
  WITHY_ASSIGN_OR_RETURN(const std::string type, Text(*choice, "tool_choice.", "type"));
  WITHY_ASSIGN_OR_RETURN(const bool one_call, Flag(*choice, "disable_parallel_tool_use"));
  if (one_call) (*chat)["parallel_tool_calls"] = false;
  if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    WITHY_ASSIGN_OR_RETURN(std::string name, Text(*choice, "tool_choice.", "name"));
    if (name.empty()) return Wrong("tool_choice.name", " is missing");
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", std::move(name)}}}};
  } else {
    return Wrong(
        "tool_choice.type",
        absl::StrCat(" is \"", type, "\": it must be \"auto\", \"any\", \"tool\" or \"none\""));
  }
  return absl::OkStatus();
}

// output_config.format is chat completions' response_format, whose schema stands one level down.
absl::Status ReadMessagesForm(const Json& given, Json* chat) {
  const Json* config = Find(given, "output_config");
  if (config == nullptr) return absl::OkStatus();
  if (!config->is_object()) return WrongType("output_config", *config, "an object");
  const Json* format = Find(*config, "format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) return WrongType("output_config.format", *format, "an object");
  WITHY_ASSIGN_OR_RETURN(const std::string type, Text(*format, "output_config.format.", "type"));
  if (type != "json_schema") {
    return Wrong("output_config.format.type",
                 absl::StrCat(" is \"", type, "\": it must be \"json_schema\""));
  }
  const Json* schema = Find(*format, "schema");
  if (schema == nullptr) {
    return Wrong("output_config.format.schema", " is missing: give a JSON Schema");
  }
  (*chat)["response_format"] = {{"type", type}, {"json_schema", {{"schema", *schema}}}};
  return absl::OkStatus();
}

// A client that lets the server hold its conversation sends the new messages alone. By this code it
// knows that it is to send all of them, without a thread.
absl::Status RefuseThread(const Json& given) {
  if (Find(given, "thread") == nullptr) return absl::OkStatus();
  absl::Status refused = Wrong("thread",
                               " is not supported: answers are not stored; leave it out and send "
                               "the whole conversation as messages");
  refused.SetPayload(kMessagesErrorCode, absl::Cord("thread_unsupported_request"));
  return refused;
}

absl::StatusOr<OpenAiCall> TranslateMessages(std::string_view text, const HeaderOf& header,
                                             bool counts) {
  WITHY_ASSIGN_OR_RETURN(const Json given, ParseBody(text));
  WITHY_RETURN_IF_ERROR(RefuseThread(given));
  Json messages = Json::array();
  Json chat = Json::object();
  WITHY_RETURN_IF_ERROR(ReadTurns(given, &messages));
  chat["messages"] = std::move(messages);
  WITHY_RETURN_IF_ERROR(ReadMessagesTools(given, &chat));
  WITHY_RETURN_IF_ERROR(ReadMessagesChoice(given, &chat));
  WITHY_RETURN_IF_ERROR(ReadMessagesForm(given, &chat));
  if (!counts && Find(given, "max_tokens") == nullptr) {
    return Wrong("max_tokens", " is missing: give the most tokens that the answer may have");
  }
  for (const char* same : {"model", "max_tokens", "temperature", "top_p", "top_k", "stream",
                           "withy", "chat_template_kwargs"}) {
    if (const Json* member = Find(given, same)) chat[same] = *member;
  }
  if (const Json* stop = Find(given, "stop_sequences")) {
    if (!stop->is_array()) return WrongType("stop_sequences", *stop, "an array of strings");
    chat["stop"] = *stop;
  }
  return ReadOpenAiCall(OpenAiKind::kChat, chat, header);
}

}  // namespace

absl::StatusOr<OpenAiCall> ParseMessagesCall(std::string_view body, const HeaderOf& header) {
  return TranslateMessages(body, header, /*counts=*/false);
}

absl::StatusOr<OpenAiCall> ParseMessagesCount(std::string_view body, const HeaderOf& header) {
  return TranslateMessages(body, header, /*counts=*/true);
}

}  // namespace withy::orchestrator
