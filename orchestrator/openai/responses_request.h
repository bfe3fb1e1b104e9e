// Requests of OpenAI's Responses API as the calls that they stand for: translated into chat
// completions' members, which openai_request.h reads. Pure. Neighbour: responses_answer.h answers.
//
// Nothing is stored: `store` is ignored, and what would refer to a stored answer is refused by
// name, as are tools that the server would run, and answers in the background.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "orchestrator/openai/openai_request.h"

namespace withy::orchestrator {

// Headers as ParseOpenAiCall has them. Errors: as there.
absl::StatusOr<OpenAiCall> ParseResponsesCall(std::string_view body, const HeaderOf& header);

}  // namespace withy::orchestrator
