// A call, or a list of calls, as JSON between two markers. <|tool_call|>: Granite, which leaves out
// the second one, Phi-4. <|START_ACTION|>: Command R.
#include <array>

#include "engine/chat/call_forms/form.h"

namespace withy::engine {
namespace {

constexpr std::string_view kBar = "<|tool_call|>";
constexpr std::string_view kBarEnd = "<|/tool_call|>";
constexpr std::array kBarMarkers = {kBar, kBarEnd};

constexpr std::string_view kAction = "<|START_ACTION|>";
constexpr std::string_view kActionEnd = "<|END_ACTION|>";
constexpr std::array kActionMarkers = {kAction, kActionEnd};

bool ReadBar(CallReader& reader) {
  if (!reader.ReadJson()) return false;
  reader.TakeAfterSpaces(kBarEnd);
  return true;
}

bool ReadAction(CallReader& reader) { return reader.ReadJson() && reader.TakeOrEnd(kActionEnd); }

}  // namespace

constinit const CallForm kGraniteForm = {kBar, ReadBar, kBarMarkers};
constinit const CallForm kCommandForm = {kAction, ReadAction, kActionMarkers};

}  // namespace withy::engine
