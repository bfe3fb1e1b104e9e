// Which KV a sliding window hides for good, and from where a context can be continued without it.
// Pure. Chunks are 16 tokens of a context, from token 0 on. A chunk may lack the blocks of layers
// with a window: nothing is lost as long as the context is continued from far enough behind it.
// Neighbours: context_store says which chunks lack blocks, serving/session/context_kv.h continues.
//
// `reach`: a row reads, in layers with a window, no chunk that ends at least so many tokens before
// the row's position (engine::KvInfo::window_reach). 0: no layer has a window, and nothing is
// hidden.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace withy::policy {

inline constexpr uint32_t kWindowChunkTokens = 16;  // of a chunk. Not tuned.

// Tokens by which a context may be shorter when it is continued than its last call left it, with
// all windows still whole: the last answer is tried again, or its end is encoded in another way.
// Tokens. Choice: a long message. Test: KvWindowTest.
inline constexpr uint32_t kWindowSlackTokens = 256;

// Leading chunks of a context of `tokens` tokens that no row reads in layers with a window, if the
// context is continued from at most `slack` tokens before its end.
inline uint32_t HiddenChunks(uint32_t tokens, uint32_t reach, uint32_t slack = kWindowSlackTokens) {
  const uint64_t seen = uint64_t{reach} + slack;
  if (reach == 0 || tokens <= seen) return 0;
  return static_cast<uint32_t>((tokens - seen) / kWindowChunkTokens);
}

// Whether the token at `position` can be computed: none of the chunks that begin before it and
// `lack` blocks lies within its windows. Chunks behind the end of `lacks` are whole.
inline bool CanContinue(const std::vector<bool>& lacks, uint32_t position, uint32_t reach) {
  const uint64_t begun = (uint64_t{position} + kWindowChunkTokens - 1) / kWindowChunkTokens;
  for (uint64_t chunk = std::min<uint64_t>(begun, lacks.size()); chunk > 0; --chunk) {
    if (chunk * kWindowChunkTokens + reach <= position)
      return true;  // it and all before it are hidden
    if (lacks[static_cast<size_t>(chunk - 1)]) return false;
  }
  return true;
}

// The most chunks, at most the first `chunks`, behind which a context can be continued.
inline uint32_t ContinuableChunks(const std::vector<bool>& lacks, uint32_t chunks, uint32_t reach) {
  while (!CanContinue(lacks, chunks * kWindowChunkTokens, reach)) --chunks;
  return chunks;
}

}  // namespace withy::policy
