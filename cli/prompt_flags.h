// The flags that make a GenerateRequest: shared by generate, plan, count-tokens and chat.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// --message, --raw, --file, --system, --context
std::vector<Flag> PromptFlags();
// --slo-…, --strict, sampling, limits, --model and the like
std::vector<Flag> SettingFlags();

// The prompt that the operands and PromptFlags describe: TEXT is a user's message, or with --raw
// goes to the model as it is. Errors: INVALID_ARGUMENT (the command line is wrong), NOT_FOUND
// (--file).
absl::StatusOr<v1::Prompt> PromptFromArgs(const Args& args);
// All but the prompt. Errors: INVALID_ARGUMENT.
absl::StatusOr<v1::GenerateRequest> SettingsFromArgs(const Args& args);

// Sets one SLO target by the name of its field ("ttft_ms", "tpot_ratio", ...). Errors:
// INVALID_ARGUMENT.
absl::Status SetSlo(const std::string& field, double value, v1::Slo* slo);

}  // namespace withy::cli
