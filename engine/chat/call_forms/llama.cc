// Llama's. 3 and 3.1: <|python_tag|> and calls as JSON, with ';' between. 3.2: the JSON alone.
#include <algorithm>
#include <array>

#include "engine/chat/call_forms/form.h"
#include "engine/chat/call_forms/json_text.h"

namespace withy::engine {
namespace {

constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::array kPythonMarkers = {kPython};

}  // namespace

constinit const CallForm kLlamaForm = {
    kPython, [](CallReader& reader) { return reader.ReadSeveral(); }, kPythonMarkers};

bool ReadBareCalls(CallReader& reader) {
  if (!reader.ReadSeveral() || !reader.AtEnd()) return false;
  return std::all_of(reader.calls().begin(), reader.calls().end(),
                     [&](const ToolCall& call) { return reader.parser().Knows(call.name); });
}

bool MayBeBareCalls(std::string_view text) {
  size_t at = 0;
  if (text.starts_with('[')) at = SkipSpaces(text, 1);
  if (at == text.size()) return true;
  if (text[at] != '{') return false;
  const std::string_view key = text.substr(SkipSpaces(text, at + 1));
  for (const std::string_view known : {R"("name")", R"("type")", R"("function")", R"("parameters")",
                                       R"("arguments")", R"("id")"}) {
    const size_t common = std::min(known.size(), key.size());
    if (known.substr(0, common) == key.substr(0, common)) return true;
  }
  return false;
}

}  // namespace withy::engine
