// Between the contract's Score and engine/session/text_scorer.h: results, and names of KV formats.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/session/text_scorer.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::engine {

// Of one contestant, or of a reference and what is compared with it, which comes last.
v1::ScoreResult ScoreResultToWire(std::span<const TextScore> scores);

// Unspecified = 8 bits. Errors: INVALID_ARGUMENT naming `field` and the formats that there are.
absl::StatusOr<KvFormat> ScoreFormatFromWire(std::string_view field, v1::KvFormat format);

// "q8", "q4", "q4q2" or "q2". Errors: INVALID_ARGUMENT naming `field` and these.
absl::StatusOr<v1::KvFormat> KvFormatFromName(std::string_view field, std::string_view name);

// Index of the level in the model. `percent` 0 = 100. Errors: INVALID_ARGUMENT naming `field` and
// the levels that the model has.
absl::StatusOr<int32_t> FindLevel(std::string_view field, uint32_t percent, const ModelInfo& info);

}  // namespace withy::engine
