#include "orchestrator/openai/responses_request.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
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

constexpr std::string_view kTextTypes[] = {"input_text", "output_text", "text"};

// Calls of one turn follow one another: they belong to one message.
absl::Status AddCalled(const Json& item, const std::string& name, Json* messages) {
  WITHY_ASSIGN_OR_RETURN(std::string id, Text(item, name + ".", "call_id"));
  WITHY_ASSIGN_OR_RETURN(std::string tool, Text(item, name + ".", "name"));
  WITHY_ASSIGN_OR_RETURN(std::string arguments, Text(item, name + ".", "arguments"));
  if (messages->empty() || messages->back()["role"] != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", ""}});
  }
  messages->back()["tool_calls"].push_back(
      {{"id", std::move(id)},
       {"type", "function"},
       {"function", {{"name", std::move(tool)}, {"arguments", std::move(arguments)}}}});
  return absl::OkStatus();
}

absl::Status AddItem(const Json& item, const std::string& name, Json* messages) {
  if (!item.is_object()) return WrongType(name, item, "an object");
  WITHY_ASSIGN_OR_RETURN(const std::string type, Text(item, name + ".", "type"));
  if (type == "reasoning") return absl::OkStatus();
  if (type == "function_call") return AddCalled(item, name, messages);
  if (type == "function_call_output") {
    WITHY_ASSIGN_OR_RETURN(std::string id, Text(item, name + ".", "call_id"));
    const Json* output = Find(item, "output");
    if (output == nullptr) return Wrong(name, ".output is missing");
    WITHY_ASSIGN_OR_RETURN(std::string text, TextOfParts(*output, name + ".output", kTextTypes));
    messages->push_back(
        {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(text)}});
    return absl::OkStatus();
  }
  if (!type.empty() && type != "message") {
    return Wrong(name, absl::StrCat(".type is \"", type,
                                    "\": it must be \"message\", \"function_call\", "
                                    "\"function_call_output\" or \"reasoning\""));
  }
  WITHY_ASSIGN_OR_RETURN(std::string role, Text(item, name + ".", "role"));
  if (role.empty()) return Wrong(name, ".role is missing");
  const Json* content = Find(item, "content");
  if (content == nullptr) return Wrong(name, ".content is missing");
  WITHY_ASSIGN_OR_RETURN(std::string text, TextOfParts(*content, name + ".content", kTextTypes));
  messages->push_back({{"role", std::move(role)}, {"content", std::move(text)}});
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadInput(const Json& given) {
  Json messages = Json::array();
  WITHY_ASSIGN_OR_RETURN(std::string instructions, Text(given, "", "instructions"));
  if (!instructions.empty()) {
    messages.push_back({{"role", "system"}, {"content", std::move(instructions)}});
  }
  const Json* input = Find(given, "input");
  if (input != nullptr && input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (input == nullptr || !input->is_array() || input->empty()) {
    return Wrong("input", " must be a string or an array of at least one item");
  }
  for (size_t i = 0; i < input->size(); ++i) {
    WITHY_RETURN_IF_ERROR(AddItem((*input)[i], absl::StrCat("input[", i, "]"), &messages));
  }
  if (messages.empty()) return Wrong("input", " has no message");
  return messages;
}

absl::Status ReadFunctions(const Json& given, Json* chat) {
  if (const Json* tools = Find(given, "tools")) {
    if (!tools->is_array()) return WrongType("tools", *tools, "an array");
    Json told = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string name = absl::StrCat("tools[", i, "]");
      if (!(*tools)[i].is_object()) return WrongType(name, (*tools)[i], "an object");
      WITHY_ASSIGN_OR_RETURN(const std::string type, Text((*tools)[i], name + ".", "type"));
      if (type != "function") {
        return Wrong(name, absl::StrCat(".type is \"", type,
                                        "\": there are no tools but those that the client runs, "
                                        "\"function\""));
      }
      Json function = Json::object();
      for (const char* member : {"name", "description", "parameters", "strict"}) {
        if (const Json* value = Find((*tools)[i], member)) function[member] = *value;
      }
      told.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    (*chat)["tools"] = std::move(told);
  }
  const Json* choice = Find(given, "tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  (*chat)["tool_choice"] = *choice;
  if (!choice->is_object()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const std::string name, Text(*choice, "tool_choice.", "name"));
  if (name.empty()) return Wrong("tool_choice.name", " is missing: name a function");
  (*chat)["tool_choice"]["function"] = {{"name", name}};
  return absl::OkStatus();
}

// text.format is chat completions' response_format with the schema's members one level up.
absl::Status ReadForm(const Json& given, Json* chat) {
  const Json* text = Find(given, "text");
  if (text == nullptr) return absl::OkStatus();
  if (!text->is_object()) return WrongType("text", *text, "an object");
  const Json* format = Find(*text, "format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) return WrongType("text.format", *format, "an object");
  WITHY_ASSIGN_OR_RETURN(const std::string type, Text(*format, "text.format.", "type"));
  if (type != "json_schema") {
    (*chat)["response_format"] = *format;
    return absl::OkStatus();
  }
  Json named = *format;
  named.erase("type");
  (*chat)["response_format"] = {{"type", type}, {"json_schema", std::move(named)}};
  return absl::OkStatus();
}

absl::Status RefuseStored(const Json& given) {
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (Find(given, name) == nullptr) continue;
    return Wrong(name,
                 " is not supported: answers are not stored; send the whole conversation as "
                 "input");
  }
  WITHY_ASSIGN_OR_RETURN(const bool background, Flag(given, "background"));
  if (background) return Wrong("background", " is true, which is not supported: leave it out");
  return body::NotEmpty(given, "prompt", "templates are not stored; send instructions and input");
}

absl::Status ReadTruncation(const Json& given, Json* chat) {
  WITHY_ASSIGN_OR_RETURN(const std::string truncation, Text(given, "", "truncation"));
  if (truncation.empty() || truncation == "disabled") return absl::OkStatus();
  if (truncation != "auto") {
    return Wrong("truncation",
                 absl::StrCat(" is \"", truncation, "\": it must be \"auto\" or \"disabled\""));
  }
  (*chat)["withy"]["truncation"] = "oldest";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenAiCall> ParseResponsesCall(std::string_view text, const HeaderOf& header) {
  WITHY_ASSIGN_OR_RETURN(Json given, ParseBody(text));
  WITHY_RETURN_IF_ERROR(RefuseStored(given));
  Json chat = Json::object();
  WITHY_ASSIGN_OR_RETURN(chat["messages"], ReadInput(given));
  WITHY_RETURN_IF_ERROR(ReadFunctions(given, &chat));
  WITHY_RETURN_IF_ERROR(ReadForm(given, &chat));
  for (const auto& [theirs, ours] :
       {std::pair("model", "model"), std::pair("temperature", "temperature"),
        std::pair("top_p", "top_p"), std::pair("stream", "stream"),
        std::pair("parallel_tool_calls", "parallel_tool_calls"), std::pair("withy", "withy"),
        std::pair("seed", "seed"), std::pair("chat_template_kwargs", "chat_template_kwargs"),
        std::pair("max_output_tokens", "max_tokens")}) {
    if (const Json* member = Find(given, theirs)) chat[ours] = *member;
  }
  if (const Json* withy = Find(chat, "withy"); withy == nullptr || withy->is_object()) {
    WITHY_RETURN_IF_ERROR(ReadTruncation(given, &chat));
  }
  WITHY_ASSIGN_OR_RETURN(OpenAiCall call, ReadOpenAiCall(OpenAiKind::kChat, chat, header));
  call.asked = std::make_shared<const Json>(std::move(given));
  return call;
}

}  // namespace withy::orchestrator
