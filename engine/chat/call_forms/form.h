// The forms in which published models write calls of tools. A form, or a family of them, has a file
// of its own in this folder. A new one needs its file, a declaration below and a line in the table
// of forms.cc. Neighbours: reader.h has the steps they share, ../tool_calls.h finds them in
// answers.
#pragma once

#include <span>
#include <string_view>

#include "engine/chat/call_forms/reader.h"

namespace withy::engine {

struct CallForm {
  // What a call begins with. No form's opening begins with another's.
  std::string_view opening;
  // Reads a call, or a group of calls, from behind the opening to behind its last marker. False: it
  // does not have this form whole.
  bool (*read)(CallReader& reader);
  // Those of its texts that a vocabulary may have as control tokens.
  std::span<const std::string_view> markers;
};

extern const CallForm kHermesForm;         // hermes.cc
extern const CallForm kFunctionForm;       // function.cc
extern const CallForm kMistralForm;        // mistral.cc
extern const CallForm kLlamaForm;          // llama.cc
extern const CallForm kGraniteForm;        // marked_json.cc
extern const CallForm kCommandForm;        // marked_json.cc
extern const CallForm kDeepSeekCallsForm;  // deepseek.cc
extern const CallForm kDeepSeekCallForm;   // deepseek.cc

// All of them.
std::span<const CallForm* const> CallForms();

// The form without an opening (Llama 3.2): JSON objects and nothing else, all calls of known tools.
bool ReadBareCalls(CallReader& reader);
// Whether text that begins with '{' or '[' may be the beginning of such calls.
bool MayBeBareCalls(std::string_view text);

}  // namespace withy::engine
