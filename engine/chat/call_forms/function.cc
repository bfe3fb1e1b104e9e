// <function=NAME>{…}</function>: Llama 3.1, Functionary. With a tag for each parameter, as
// <parameter=KEY>VALUE</parameter>: Qwen 3 Coder.
#include <array>
#include <optional>
#include <string>

#include "engine/chat/call_forms/form.h"
#include "engine/chat/call_forms/json_text.h"

namespace withy::engine {
namespace {

using Json = OrderedJson;

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::array kFunctionMarkers = {kFunctionEnd};  // the opening goes on with the name

// The type is the one that the tool's description gives; else what is JSON is what it says.
Json ParameterValue(const ToolCallParser& parser, std::string_view tool, std::string_view key,
                    std::string_view text) {
  // The newlines around it are the form's.
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  Json value;
  const bool json =
      !parser.IsText(tool, key) && ValueEnd(text, 0) == text.size() && ParseJson(text, &value).ok();
  return json ? value : Json(std::string(text));
}

bool ReadFunction(CallReader& reader) {
  const auto name = reader.TakeUntil(">");
  if (!name) return false;
  if (reader.Peek() == '{') {
    const auto arguments = reader.TakeValue();
    return arguments && reader.AddNamed(*name, *arguments) && reader.TakeOrEnd(kFunctionEnd);
  }
  Json arguments = Json::object();
  while (reader.TakeAfterSpaces(kParameter)) {
    const auto key = reader.TakeUntil(">");
    const auto value = key ? reader.TakeUntil(kParameterEnd) : std::nullopt;
    if (!value) return false;
    arguments[std::string(*key)] = ParameterValue(reader.parser(), *name, *key, *value);
  }
  return reader.AddNamed(*name, DumpJson(arguments)) && reader.TakeAfterSpaces(kFunctionEnd);
}

}  // namespace

constinit const CallForm kFunctionForm = {kFunction, ReadFunction, kFunctionMarkers};

}  // namespace withy::engine
