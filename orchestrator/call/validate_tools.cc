#include "orchestrator/call/validate_tools.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/json.h"
#include "base/status.h"
#include "base/tool_name.h"
#include "orchestrator/call/validate.h"

namespace withy::orchestrator {
namespace {

using Json = OrderedJson;

template <typename... Args>
absl::Status WrongTool(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status ReadJson(const std::string& field, const std::string& text, size_t limit, Json* json) {
  if (text.size() > limit) {
    return WrongTool(field, " is ", text.size(), " bytes long: at most ", limit, "; shorten it");
  }
  const absl::Status parsed = ParseJson(text, json);
  return parsed.ok() ? parsed : WrongTool(field, " ", parsed.message());
}

absl::Status CheckToolName(const std::string& field, const std::string& name) {
  if (IsToolName(name)) return absl::OkStatus();
  const bool text = FindInvalidUtf8(name) == std::string_view::npos;
  return WrongTool(field, " is ", text ? absl::StrCat("\"", name.substr(0, 64), "\"") : "no UTF-8",
                   ": must be 1 to ", kMaxToolNameBytes,
                   " of letters, digits, '_', '-', '.', ':' and '/'");
}

absl::Status CheckTool(const std::string& field, const Json& tool, std::set<std::string>* names) {
  if (!tool.is_object())
    return WrongTool(field, " is of type ", tool.type_name(), ": must be an object");
  const auto type = tool.find("type");
  if (type == tool.end() || *type != "function") {
    return WrongTool(field, ".type must be \"function\"");
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) {
    return WrongTool(field, ".function must be an object with the function's name");
  }
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) {
    return WrongTool(field, ".function.name must be a string");
  }
  const auto& text = name->get_ref<const std::string&>();
  WITHY_RETURN_IF_ERROR(CheckToolName(field + ".function.name", text));
  if (!names->insert(text).second) {
    return WrongTool(field, ".function.name is \"", text, "\" again: names must differ");
  }
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_object() && !parameters->is_null()) {
    return WrongTool(field, ".function.parameters must be an object (a JSON schema)");
  }
  return absl::OkStatus();
}

absl::Status CheckId(const std::string& field, const std::string& id) {
  if (id.size() > kMaxIdBytes) {
    return WrongTool(field, " is ", id.size(), " bytes long: at most ", kMaxIdBytes);
  }
  if (FindInvalidUtf8(id) != std::string_view::npos) {
    return WrongTool(field, " is not valid UTF-8: convert it");
  }
  return absl::OkStatus();
}

absl::Status CheckCalledName(const std::string& field, const std::string& name) {
  if (name.empty() || name.size() > kMaxCalledNameBytes) {
    return WrongTool(field, " is ", name.size(), " bytes long: must be 1 to ", kMaxCalledNameBytes);
  }
  if (FindInvalidUtf8(name) == std::string_view::npos) return absl::OkStatus();
  return WrongTool(field, " is not valid UTF-8: convert it");
}

}  // namespace

absl::Status ValidateTools(const v1::Messages& prompt) {
  if (!prompt.tools_json().empty()) {
    const std::string field = "prompt.messages.tools_json";
    Json tools;
    WITHY_RETURN_IF_ERROR(ReadJson(field, prompt.tools_json(), kMaxToolsBytes, &tools));
    if (!tools.is_array()) {
      return WrongTool(field, " is of type ", tools.type_name(), ": must be a list of tools");
    }
    if (tools.size() > kMaxTools) {
      return WrongTool(field, " has ", tools.size(), " tools: at most ", kMaxTools);
    }
    std::set<std::string> names;
    for (size_t i = 0; i < tools.size(); ++i) {
      WITHY_RETURN_IF_ERROR(CheckTool(absl::StrCat(field, "[", i, "]"), tools[i], &names));
    }
  }
  if (prompt.template_arguments_json().empty()) return absl::OkStatus();
  const std::string field = "prompt.messages.template_arguments_json";
  Json arguments;
  WITHY_RETURN_IF_ERROR(
      ReadJson(field, prompt.template_arguments_json(), kMaxTemplateArgumentsBytes, &arguments));
  if (arguments.is_object()) return absl::OkStatus();
  return WrongTool(field, " is of type ", arguments.type_name(), ": must be an object");
}

absl::Status ValidateCalls(const v1::Message& message, int index) {
  const std::string field = absl::StrCat("prompt.messages[", index, "]");
  if (message.tool_calls_size() > 0 && message.role() != "assistant") {
    return WrongTool(field, ".tool_calls is set, but its role is ", message.role(),
                     ": only an assistant calls tools");
  }
  if (message.tool_calls_size() > kMaxCallsOfMessage) {
    return WrongTool(field, ".tool_calls has ", message.tool_calls_size(), " entries: at most ",
                     kMaxCallsOfMessage);
  }
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    const v1::ToolCall& call = message.tool_calls(i);
    const std::string name = absl::StrCat(field, ".tool_calls[", i, "]");
    WITHY_RETURN_IF_ERROR(CheckId(name + ".id", call.id()));
    // What a model wrote is said as it is: a wrong call must not end the conversation for good.
    WITHY_RETURN_IF_ERROR(CheckCalledName(name + ".name", call.name()));
    if (FindInvalidUtf8(call.arguments_json()) != std::string_view::npos) {
      return WrongTool(name, ".arguments_json is not valid UTF-8: convert it");
    }
  }
  WITHY_RETURN_IF_ERROR(CheckId(field + ".tool_call_id", message.tool_call_id()));
  if (message.role() != "tool" && !message.tool_call_id().empty()) {
    return WrongTool(field, ".tool_call_id is set, but its role is ", message.role(),
                     ": only a tool's result answers a call");
  }
  if (message.name().empty()) return absl::OkStatus();
  return CheckCalledName(field + ".name", message.name());
}

}  // namespace withy::orchestrator
