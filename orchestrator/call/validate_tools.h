// Checks the JSON of public requests: tools, calls, arguments of chat templates. Pure; validate.h
// asks.
#pragma once

#include "absl/status/status.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Messages.tools_json and .template_arguments_json. Errors: INVALID_ARGUMENT naming the field, and
// the tool.
absl::Status ValidateTools(const v1::Messages& prompt);
// What message number `index` says of tools. Errors: INVALID_ARGUMENT naming the field.
absl::Status ValidateCalls(const v1::Message& message, int index);

}  // namespace withy::orchestrator
