// Requests of OpenAI's /v1/embeddings, and the calls that they stand for. Pure. Neighbours:
// embeddings_answer.h makes the answers, http_door.h speaks HTTP.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

struct EmbeddingsCall {
  v1::EmbedRequest request;
  bool base64 = false;                                // how vectors are written
  std::optional<uint64_t> dimensions = std::nullopt;  // as the client wants them
};

// `body` is the JSON document: `input` is a string, tokens, or an array of such; `model`,
// `encoding_format` ("float", "base64") and `dimensions` are optional, all else is ignored. Errors:
// INVALID_ARGUMENT naming the field.
absl::StatusOr<EmbeddingsCall> ParseEmbeddingsCall(std::string_view body);

// Vectors are not shortened. Errors: INVALID_ARGUMENT naming `dimensions`; UNIMPLEMENTED where the
// model gives no vectors.
absl::Status CheckDimensions(const EmbeddingsCall& call, const v1::ModelDescription& model);

}  // namespace withy::orchestrator
