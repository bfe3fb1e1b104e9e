#include "serving/session/kv_holes.h"

#include <algorithm>

#include "engine/kv/block.h"

namespace withy::serving {
namespace {

int32_t FirstToken(uint32_t chunk) { return static_cast<int32_t>(chunk) * engine::kChunkTokens; }

}  // namespace

int32_t ChunksFor(int32_t tokens) {
  return (tokens + engine::kChunkTokens - 1) / engine::kChunkTokens;
}

uint32_t KvHoles::NextToCompute(int32_t from) const {
  return load_.Find(policy::KvLoad::Chunk::kToCompute, static_cast<uint32_t>(std::max(from, 0)));
}

int32_t KvHoles::FirstReading() const {
  const uint32_t chunk = load_.Find(policy::KvLoad::Chunk::kReading);
  return chunk == policy::KvLoad::kNone ? reused_tokens_ : FirstToken(chunk);
}

int32_t KvHoles::SkipPresent(int32_t at) const {
  if (at >= reused_tokens_) return at;
  const uint32_t chunk = NextToCompute(at / engine::kChunkTokens);
  return chunk == policy::KvLoad::kNone ? reused_tokens_ : std::max(at, FirstToken(chunk));
}

int32_t KvHoles::Count(int32_t from, int32_t to) const {
  int32_t missing = std::max(0, to - std::max(from, reused_tokens_));
  const auto end = static_cast<uint32_t>(ChunksFor(std::max(to, 0)));
  for (uint32_t chunk = NextToCompute(from / engine::kChunkTokens); chunk < end;
       chunk = NextToCompute(static_cast<int32_t>(chunk) + 1)) {
    missing += std::min(to, FirstToken(chunk + 1)) - std::max(from, FirstToken(chunk));
  }
  return missing;
}

int32_t KvHoles::After(int32_t from, int32_t count) const {
  int32_t at = SkipPresent(from);
  while (count > 0 && at < reused_tokens_) {
    const int32_t rest = engine::kChunkTokens - at % engine::kChunkTokens;
    at = SkipPresent(at + std::min(count, rest));
    count -= std::min(count, rest);
  }
  return at + count;
}

}  // namespace withy::serving
