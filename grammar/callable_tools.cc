#include "grammar/callable_tools.h"

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/json.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/tool_name.h"
#include "grammar/schema_check.h"

namespace withy::grammar {
namespace {

constexpr char kToolsField[] = "prompt.messages.tools_json";
constexpr char kCallsField[] = "output_format.tool_calls";

// null: there is no such member.
const OrderedJson& MemberOf(const OrderedJson& object, const char* name) {
  static const OrderedJson none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

absl::StatusOr<std::string> ArgumentsSchema(const std::string& field, const OrderedJson& function) {
  const OrderedJson& parameters = MemberOf(function, "parameters");
  const bool strict = MemberOf(function, "strict") == true;
  if (parameters.is_null()) return std::string(kAnyObject);
  const std::string text = parameters.dump();
  if (MemberOf(parameters, "type") != "object") {
    if (!strict) return std::string(kAnyObject);
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".type must be \"object\": the tool is strict"));
  }
  if (strict && text.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", text.size(),
                                                   " bytes long: at most ", kMaxSchemaBytes,
                                                   " where the tool is strict; make it smaller"));
  }
  absl::StatusOr<std::string> schema = absl::InvalidArgumentError("too long");
  if (text.size() <= kMaxSchemaBytes) schema = PrepareSchema(field, text);
  return schema.ok() || strict ? schema : std::string(kAnyObject);
}

}  // namespace

absl::StatusOr<std::vector<CallableTool>> CallableTools(const engine::OutputFormat& format) {
  OrderedJson tools;
  const bool read = ParseJson(format.text, &tools).ok();
  if (!read || !tools.is_array() || tools.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kCallsField, " needs tools to call: give some in ", kToolsField));
  }
  std::vector<CallableTool> callable;
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& function = MemberOf(tools[i], "function");
    const OrderedJson& name = MemberOf(function, "name");
    const std::string field = absl::StrCat(kToolsField, "[", i, "].function");
    if (!name.is_string() || !IsToolName(name.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".name is missing or no tool's name"));
    }
    const auto& text = name.get_ref<const std::string&>();
    if (!format.tool.empty() && text != format.tool) continue;
    WITHY_ASSIGN_OR_RETURN(std::string schema, ArgumentsSchema(field + ".parameters", function));
    callable.push_back({.name = text, .schema = std::move(schema)});
  }
  if (!callable.empty()) return callable;
  return absl::InvalidArgumentError(absl::StrCat(
      kCallsField, ".tool is \"", format.tool, "\", which is none of the tools: name one of them"));
}

}  // namespace withy::grammar
