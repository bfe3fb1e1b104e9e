// Checks every field of the public requests against the contract's limits
// (base/contract_limits.h), before anything is done
// for them. Pure; neighbours: service.cc calls it on arrival, decide.h judges whether an SLO can be
// met.
//
// Every error names the field, its value, the limit and what to do. Codes: INVALID_ARGUMENT unless
// said otherwise; a prompt that is longer than any window is OUT_OF_RANGE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// What a request's limits depend on.
struct ModelLimits {
  uint32_t context_length = 0;  // tokens
  uint32_t vocabulary = 0;
  std::vector<uint32_t> levels_percent;  // ascending, last is 100
  bool keeps_contexts = true;            // false: stateless calls only (the draft)
};

// What can be checked without knowing the model. Also UNIMPLEMENTED: output schema.
absl::Status ValidateGenerate(const v1::GenerateRequest& request);
// What depends on the model that will answer; call after ValidateGenerate.
absl::Status ValidateForModel(const v1::GenerateRequest& request, const ModelLimits& model);

absl::Status ValidatePrompt(const v1::Prompt& prompt);
absl::Status ValidateBindApp(const v1::BindAppRequest& request);
absl::Status ValidateCreateContext(const v1::CreateContextRequest& request);
absl::Status ValidateListContexts(const v1::ListContextsRequest& request);
absl::Status ValidateContextId(std::string_view context_id);
absl::Status ValidateCountTokens(const v1::CountTokensRequest& request);
// Levels are the worker's to check.
absl::Status ValidateScore(const v1::ScoreRequest& request);
// Lengths in tokens are the worker's to check.
absl::Status ValidateEmbed(const v1::EmbedRequest& request);
absl::Status ValidateCancel(const v1::CancelRequest& request);

// Offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms, at
// most U+10FFFF), or std::string_view::npos.
size_t FindInvalidUtf8(std::string_view text);

}  // namespace withy::orchestrator
