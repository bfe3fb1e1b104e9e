// DeepSeek's: calls begin, (call begin, …, call end) for each call, calls end. R1 has "TYPE
// separator NAME\n```json\nJSON\n```" for a call, V3.1 "NAME separator JSON". The outer markers may
// be missing.
#include <array>

#include "engine/chat/call_forms/form.h"

namespace withy::engine {
namespace {

// With U+FF5C and U+2581.
constexpr std::string_view kDeepCalls = "<\uFF5Ctool\u2581calls\u2581begin\uFF5C>";
constexpr std::string_view kDeepCallsEnd = "<\uFF5Ctool\u2581calls\u2581end\uFF5C>";
constexpr std::string_view kDeepCall = "<\uFF5Ctool\u2581call\u2581begin\uFF5C>";
constexpr std::string_view kDeepCallEnd = "<\uFF5Ctool\u2581call\u2581end\uFF5C>";
constexpr std::string_view kDeepSeparator = "<\uFF5Ctool\u2581sep\uFF5C>";
constexpr std::array kDeepCallsMarkers = {kDeepCalls, kDeepCallsEnd};
constexpr std::array kDeepCallMarkers = {kDeepCall, kDeepCallEnd, kDeepSeparator};

bool ReadDeepCall(CallReader& reader) {
  auto name = reader.TakeUntil(kDeepSeparator);
  if (!name) return false;
  if (reader.Peek() != '{') {
    name = reader.TakeUntil("\n");
    if (!name) return false;
    reader.TakeAfterSpaces("```json");
  }
  const auto arguments = reader.TakeValue();
  if (!arguments || !reader.AddNamed(*name, *arguments)) return false;
  reader.TakeAfterSpaces("```");
  return reader.TakeOrEnd(kDeepCallEnd);
}

bool ReadDeepCalls(CallReader& reader) {
  while (reader.TakeAfterSpaces(kDeepCall)) {
    if (!ReadDeepCall(reader)) return false;
  }
  return !reader.calls().empty() && reader.TakeOrEnd(kDeepCallsEnd);
}

}  // namespace

constinit const CallForm kDeepSeekCallsForm = {kDeepCalls, ReadDeepCalls, kDeepCallsMarkers};
constinit const CallForm kDeepSeekCallForm = {kDeepCall, ReadDeepCall, kDeepCallMarkers};

}  // namespace withy::engine
