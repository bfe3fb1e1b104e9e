#include <array>

#include "engine/chat/call_forms/form.h"

namespace withy::engine {
namespace {

constexpr std::array kForms = {
    &kHermesForm,  &kFunctionForm, &kMistralForm,       &kLlamaForm,
    &kGraniteForm, &kCommandForm,  &kDeepSeekCallsForm, &kDeepSeekCallForm,
};

}  // namespace

std::span<const CallForm* const> CallForms() { return kForms; }

}  // namespace withy::engine
