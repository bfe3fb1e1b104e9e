#include "orchestrator/openai/api.h"

#include <algorithm>
#include <array>

#include "orchestrator/openai/messages_answer.h"
#include "orchestrator/openai/messages_request.h"
#include "orchestrator/openai/openai_answer.h"
#include "orchestrator/openai/responses_answer.h"
#include "orchestrator/openai/responses_request.h"

namespace withy::orchestrator {
namespace {

template <typename Writer>
std::unique_ptr<AnswerWriter> Answer(std::span<const OpenAiCall> choices, int64_t created_unix_s) {
  return std::make_unique<Writer>(choices, created_unix_s);
}

template <OpenAiKind kind>
absl::StatusOr<OpenAiCall> Read(std::string_view body, const HeaderOf& header) {
  return ParseOpenAiCall(kind, body, header);
}

constexpr std::array kApis = {
    Api{.path = "/v1/chat/completions",
        .prompt_field = "messages",
        .read = Read<OpenAiKind::kChat>,
        .answer = Answer<OpenAiAnswer>,
        .errors = kOpenAiErrors},
    Api{.path = "/v1/completions",
        .prompt_field = "prompt",
        .read = Read<OpenAiKind::kCompletion>,
        .answer = Answer<OpenAiAnswer>,
        .errors = kOpenAiErrors},
    Api{.path = "/v1/messages",
        .prompt_field = "messages",
        .read = ParseMessagesCall,
        .answer = Answer<MessagesAnswer>,
        .errors = kMessagesErrors},
    Api{.path = "/v1/messages/count_tokens",
        .prompt_field = "messages",
        .read = ParseMessagesCount,
        .answer = nullptr,
        .errors = kMessagesErrors},
    Api{.path = "/v1/responses",
        .prompt_field = "input",
        .read = ParseResponsesCall,
        .answer = Answer<ResponsesAnswer>,
        .errors = kOpenAiErrors},
};

}  // namespace

std::span<const Api> Apis() { return kApis; }

const Api* FindApi(std::string_view path) {
  const auto found =
      std::find_if(kApis.begin(), kApis.end(), [&](const Api& api) { return api.path == path; });
  return found == kApis.end() ? nullptr : &*found;
}

}  // namespace withy::orchestrator
