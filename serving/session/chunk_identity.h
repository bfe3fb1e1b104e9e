// Names of KV chunks: a hash of everything a chunk depends on. A chunk whose identity is not the
// expected one is recomputed and never used. Neighbours: context_store keeps identities beside
// blocks and does not compare them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv/block.h"

namespace withy::serving {

using Identity = std::array<uint8_t, 32>;

// One chunk of a context: its name, filled slots (1..16; fewer than 16 only in the last), lowest
// level of its tokens.
struct ChunkName {
  Identity identity{};
  int32_t tokens = 0;
  int32_t level_percent = 100;
  // Mean attention probability that a token of the chunk gets from a row after it (LLMS eq. 1), and
  // the number of rows that the mean is of. Not part of the identity.
  float density = 0;
  int32_t density_rows = 0;
  // It was computed from KV of fewer bits than the working format has, so its numbers are not those
  // of a fresh prefill. Part of the identity, and found by it: nobody has to keep it.
  bool over_compressed = false;
};

// The identity of a model for chunks and for the store: SHA-256 of the engine's model id, the
// block's geometry, and the kernel target, since KV of two targets differs in its last bits.
Identity ModelIdentity(std::string_view model_id, const engine::KvGeometry& geometry,
                       std::string_view kernel_target = "portable");

// SHA-256 over the previous chunk's identity, the chunk's tokens, model, LoRA, level and precision
// format. A chunk that was computed over compressed KV has another identity than one that was not;
// the chunk behind it is named by what the previous identity would be otherwise, so that a chunk
// may be computed exactly again without a new name for all that follow. See ARCHITECTURE.md, A
// call. Thread-safe.
class ChunkNamer {
 public:
  ChunkNamer(const Identity& model, std::string lora_id, engine::KvFormat format)
      : model_(model), lora_id_(std::move(lora_id)), format_(format) {}

  // `previous` is all zero for the first chunk.
  Identity Name(const Identity& previous, std::span<const int32_t> tokens, int32_t level_percent,
                bool over_compressed = false) const;

  // How many of `resident` (from chunk 0 on) are what these tokens would make at the levels they
  // state. Finds `over_compressed` of these.
  size_t MatchingChunks(std::span<ChunkName> resident, std::span<const int32_t> tokens) const;

  // Names for all of `tokens`, keeping the first `kept` names as they are. `levels[i]` is chunk i's
  // level. Chunks that are named from `compressed_from` on were computed over compressed KV.
  std::vector<ChunkName> NameAll(std::span<const ChunkName> kept, std::span<const int32_t> tokens,
                                 std::span<const int32_t> levels,
                                 size_t compressed_from = SIZE_MAX) const;
  // Names chunk `number` of `names` anew, as one that was computed (not) over compressed KV.
  void Rename(size_t number, std::span<const int32_t> tokens, bool over_compressed,
              std::vector<ChunkName>* names) const;

 private:
  // What chunk `number` of `names` has as the previous identity.
  Identity PreviousOf(std::span<const ChunkName> names, size_t number,
                      std::span<const int32_t> tokens) const;

  Identity model_;
  std::string lora_id_;
  engine::KvFormat format_;
};

}  // namespace withy::serving
