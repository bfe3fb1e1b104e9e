// <tool_call>{"name": …, "arguments": …}</tool_call>: Hermes, Qwen 2.5 and 3. Several objects may
// be between the tags, or a call in the form of function.cc (Qwen 3 Coder).
#include <array>

#include "engine/chat/call_forms/form.h"

namespace withy::engine {
namespace {

constexpr std::string_view kTag = "<tool_call>";
constexpr std::string_view kTagEnd = "</tool_call>";
constexpr std::array kTagMarkers = {kTag, kTagEnd};

bool ReadTag(CallReader& reader) {
  if (reader.TakeAfterSpaces(kFunctionForm.opening)) {
    return kFunctionForm.read(reader) && reader.TakeOrEnd(kTagEnd);
  }
  do {
    if (!reader.ReadJson()) return false;
  } while (reader.Peek() == '{');
  return reader.TakeOrEnd(kTagEnd);
}

}  // namespace

constinit const CallForm kHermesForm = {kTag, ReadTag, kTagMarkers};

}  // namespace withy::engine
