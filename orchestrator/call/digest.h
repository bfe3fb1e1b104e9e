// SHA-256 of what the orchestrator must recognise again: a request that is retried, a token that
// was seen before.
#pragma once

#include <string>
#include <string_view>

#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// 32 bytes.
std::string Sha256(std::string_view bytes);

// Digest of what a request asks for: its deterministic serialisation without request_id. Equal
// requests of one build of withy have equal digests.
std::string RequestDigest(const v1::GenerateRequest& request);

// The largest seed that is made here. It is exact in a double, as which many languages read numbers
// of JSON.
inline constexpr uint64_t kMaxExactSeed = (uint64_t{1} << 53) - 1;

// The seed of a request that has an id and names none: each try of it draws the same.
uint64_t SeedOf(std::string_view app_id, std::string_view request_id, std::string_view digest);

}  // namespace withy::orchestrator
