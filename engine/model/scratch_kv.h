// KV blocks of one context in ordinary memory, and greedy decoding over them. For tests, tools and
// benchmarks that have no arena; workers keep their blocks in the shared arena. Neighbours:
// model.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/block.h"
#include "engine/kv/memory.h"
#include "engine/model/model.h"

namespace withy::engine {

// Not thread-safe.
class ScratchKv {
 public:
  // `format`: of new blocks, kQ8 or kF16.
  ScratchKv(const ModelInfo& info, int32_t tokens, KvFormat format = KvFormat::kQ8);
  ~ScratchKv();
  ScratchKv(ScratchKv&& other) noexcept;
  ScratchKv(const ScratchKv&) = delete;
  ScratchKv& operator=(const ScratchKv&) = delete;

  // Grows to `tokens` tokens in total; never shrinks. Blocks keep their names and contents, but
  // earlier views become invalid.
  void Extend(int32_t tokens);
  // Encodes all blocks of a chunk, which have more bits, as `to` (kv/encode.h), in their places.
  void Encode(int32_t chunk, KvFormat to);
  // Copies a token's K and V of all layers to another slot.
  void Copy(int32_t from, int32_t to);
  // Somebody wrote blocks through a view.
  void Touch();
  // `committed_tokens` slots are read-only for Forward.
  ContextView View(int32_t committed_tokens = 0) const {
    return {.memory = memory_,
            .blocks = blocks_,
            .committed_tokens = committed_tokens,
            .chunk_versions = versions_};
  }

 private:
  KvGeometry geometry() const { return {kv_.layers, kv_.kv_heads, kv_.head_dim}; }

  KvInfo kv_;
  KvFormat format_;
  KvMemory memory_;  // an owned anonymous mapping
  std::vector<KvBlockName> blocks_;
  std::vector<uint64_t> versions_;  // [chunk], ContextView::chunk_versions
};

// Computes `tokens` at positions first, first + 1, ... of the context. Writes the last one's logits
// to `logits` [vocab_size], unless that is null. `tag` names the pass. Errors: as Model::Forward.
absl::Status Prefill(Model& model, const ScratchKv& kv, std::span<const int32_t> tokens,
                     int32_t first, float* logits, const PassTag& tag = {});

// Decodes `count` tokens after `prompt` (not empty), each the one with the largest logit, the
// lowest id on ties. Errors: as Model::Forward.
absl::StatusOr<std::vector<int32_t>> GreedyDecode(Model& model, std::span<const int32_t> prompt,
                                                  int32_t count);

}  // namespace withy::engine
