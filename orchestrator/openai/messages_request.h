// Requests of Anthropic's Messages API as the calls that they stand for: translated into chat
// completions' members, which openai_request.h reads. Pure. Neighbour: messages_answer.h answers.
//
// Images and documents are refused by name; thinking, metadata and what is not known are ignored.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "orchestrator/openai/openai_request.h"

namespace withy::orchestrator {

// Headers as ParseOpenAiCall has them. Errors: as there.
absl::StatusOr<OpenAiCall> ParseMessagesCall(std::string_view body, const HeaderOf& header);
// A request that counts tokens: without max_tokens.
absl::StatusOr<OpenAiCall> ParseMessagesCount(std::string_view body, const HeaderOf& header);

}  // namespace withy::orchestrator
