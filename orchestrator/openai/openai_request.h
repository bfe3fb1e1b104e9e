// Requests of OpenAI's HTTP API, as clients of model servers send them, and the calls that they
// stand for. Pure. Neighbours: openai_answer.h makes the answers, http_door.h speaks HTTP.
//
// Fields that are not known are ignored. A known field of another type, out of its range, or with a
// value that withy cannot honour is INVALID_ARGUMENT, and the message names it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// What a request's path asks for.
enum class OpenAiKind { kChat, kCompletion };

// Value of a header, by its name in lower case; nullopt: it was not sent.
using HeaderOf = std::function<std::optional<std::string>(const char* name)>;

// Text, or tokens if there are any.
struct CompletionPrompt {
  std::string text = {};
  std::vector<int32_t> tokens = {};
};

struct OpenAiCall {
  OpenAiKind kind = OpenAiKind::kChat;
  // Complete but for `context_id`. A chat's messages are all in the prompt, those before the last
  // one marked as fixed.
  v1::GenerateRequest request;
  // Seconds since the Unix epoch go into the answer; ids are made of the call's id.
  bool stream = false;
  bool include_usage = false;  // of a stream: one more chunk with the usage
  bool echo = false;           // of a completion: the prompt is repeated before the answer
  bool only_echo = false;      // of such a one: no token is asked for
  // A completion's prompt, if it was given as tokens: the request then lacks its text.
  std::vector<int32_t> prompt_tokens = {};
  // Of a completion: its other prompts.
  std::vector<CompletionPrompt> more_prompts = {};
  // Of the Responses API: the request, whose members its answer repeats. Shared by choices.
  std::shared_ptr<const OrderedJson> asked = nullptr;
  int samples = 1;                     // answers to each prompt
  std::vector<v1::Token> echoed = {};  // the prompt's tokens, if their log-probabilities are shown
  // Of one of ChoicesOf: its index among the choices, and among those of its prompt.
  int choice = 0;
  int sample = 0;

  // Tools that a context has are not known here.
  bool MayCallTools() const;
};

// The calls that the request stands for, by the index of their choices: each prompt `samples`
// times, with seeds and request ids that follow one another.
std::vector<OpenAiCall> ChoicesOf(const OpenAiCall& call);

// `body` is the JSON document. Headers, all optional:
//   x-slo-ttft-ms, x-slo-tpot-ms        as Slo.ttft_ms, .tpot_ms
//   x-slo-end-to-end-ms, x-slo-ttft-ratio, x-slo-tpot-ratio, x-slo-energy-mj, x-slo-strict
//   x-withy-speculation                 off, auto, lookup, prefix, draft, head
//   x-withy-model-level, x-withy-prompt-level   per cent
//   x-withy-priority                    -10..10
//   x-withy-context                     a context of the app: the messages continue it
//   idempotency-key                     as GenerateRequest.request_id
// Errors: INVALID_ARGUMENT, OUT_OF_RANGE for too many messages.
absl::StatusOr<OpenAiCall> ParseOpenAiCall(OpenAiKind kind, std::string_view body,
                                           const HeaderOf& header);
// Of a body that has been parsed.
absl::StatusOr<OpenAiCall> ReadOpenAiCall(OpenAiKind kind, const OrderedJson& body,
                                          const HeaderOf& header);
// A request's body, an object.
absl::StatusOr<OrderedJson> ParseBody(std::string_view body);
// What ParseOpenAiCall says of the headers, before there is a body.
absl::Status CheckOpenAiHeaders(const HeaderOf& header);

// Limits above what the model has mean all that it has: max_tokens its window, top_k its
// vocabulary.
void FitToModel(const v1::ModelDescription& model, v1::GenerateRequest* request);

// Whether the last message is an answer that is to go on.
bool ContinuesAnswer(const v1::Messages& messages);

}  // namespace withy::orchestrator
