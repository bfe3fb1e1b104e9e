// Mistral's. Old: [TOOL_CALLS] and a list of calls as JSON. New: [TOOL_CALLS]NAME[ARGS]{…} for each
// call, with [CALL_ID]ID behind the name or without [ARGS].
#include <array>

#include "engine/chat/call_forms/form.h"

namespace withy::engine {
namespace {

constexpr std::string_view kToolCalls = "[TOOL_CALLS]";
constexpr std::string_view kArgs = "[ARGS]";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr std::array kMistralMarkers = {kToolCalls, kArgs, kCallId};

bool ReadMistral(CallReader& reader) {
  const char first = reader.Peek();
  if (first == '[' || first == '{') return reader.ReadJson();
  const auto name = reader.TakeUpToAny("[{");
  if (!name) return false;
  if (reader.Take(kCallId) && !reader.TakeUpToAny("[{")) return false;
  reader.Take(kArgs);
  if (reader.Peek() != '{') return false;
  const auto arguments = reader.TakeValue();
  return arguments && reader.AddNamed(*name, *arguments);
}

}  // namespace

constinit const CallForm kMistralForm = {kToolCalls, ReadMistral, kMistralMarkers};

}  // namespace withy::engine
