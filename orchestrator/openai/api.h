// The APIs that the HTTP door speaks: by the path of a request, how it is read, answered and
// refused. Pure. Neighbours: http_door.cc asks; each API has its own request and answer files.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "orchestrator/openai/answer_writer.h"
#include "orchestrator/openai/openai_error.h"
#include "orchestrator/openai/openai_request.h"

namespace withy::orchestrator {

// One path that takes POST.
struct Api {
  std::string_view path;
  std::string_view prompt_field;  // what its requests call the prompt
  // Errors: as ParseOpenAiCall.
  absl::StatusOr<OpenAiCall> (*read)(std::string_view body, const HeaderOf& header);
  // `choices`: as ChoicesOf; outlive it. null: only the prompt's tokens are counted.
  std::unique_ptr<AnswerWriter> (*answer)(std::span<const OpenAiCall> choices,
                                          int64_t created_unix_s);
  ErrorForm errors;
};

std::span<const Api> Apis();
// null: no API has this path.
const Api* FindApi(std::string_view path);

}  // namespace withy::orchestrator
