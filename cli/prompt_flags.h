// Flags that build a GenerateRequest; shared by generate, plan, count-tokens and chat.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/flags.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// --message, --raw, --file, --system, and ToolFlags
std::vector<Flag> PromptFlags();
// --tools, --template-arguments
std::vector<Flag> ToolFlags();
// --context, --slo-…, --strict, sampling, limits, --model and the like
std::vector<Flag> SettingFlags();
// --worker, --model: two of SettingFlags
std::vector<Flag> ModelFlags();
// --timeout-s
Flag TimeoutFlag(absl::Duration fallback);

// The prompt from operands and PromptFlags. TEXT is a user message, or with --raw is given to the
// model unchanged. Errors: INVALID_ARGUMENT (wrong command line, a text that is too long or not
// UTF-8), of reading --file.
absl::StatusOr<v1::Prompt> PromptFromArgs(const Args& args);
// What ToolFlags say. Errors: INVALID_ARGUMENT, of reading --tools.
absl::Status FillTools(const Args& args, v1::Messages* messages);
// The model that ModelFlags name; empty = the target. Errors: INVALID_ARGUMENT.
absl::StatusOr<std::string> ModelFromArgs(const Args& args);
// Where drafted tokens come from, as --speculation says it. Errors: INVALID_ARGUMENT.
absl::StatusOr<v1::Speculation> SpeculationFromText(const std::string& text);
// Everything except the prompt. Errors: INVALID_ARGUMENT.
absl::StatusOr<v1::GenerateRequest> SettingsFromArgs(const Args& args);
// `fallback` if the flag is not given. Errors: INVALID_ARGUMENT.
absl::StatusOr<absl::Duration> TimeoutFromArgs(const Args& args, absl::Duration fallback);

// Parses SLO words typed in a chat: FIELD=NUMBER and `strict`, or `off` for none. Errors:
// INVALID_ARGUMENT.
absl::StatusOr<v1::Slo> SloFromWords(std::span<const std::string> words);

// Sets one SLO target by the name of its field ("ttft_ms", "tpot_ratio", ...). Errors:
// INVALID_ARGUMENT.
absl::Status SetSlo(const std::string& field, double value, v1::Slo* slo);

}  // namespace withy::cli
