// KV blocks of one context in ordinary memory, and greedy decoding over them: for tests, tools and
// benchmarks that have no arena. Neighbours: model.h. Workers hold their blocks in the shared arena
// instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/memory.h"
#include "engine/model/model.h"

namespace withy::engine {

// Not thread-safe.
class ScratchKv {
 public:
  ScratchKv(const ModelInfo& info, int32_t tokens);
  ~ScratchKv();
  ScratchKv(ScratchKv&& other) noexcept;
  ScratchKv(const ScratchKv&) = delete;
  ScratchKv& operator=(const ScratchKv&) = delete;

  // Makes room for `tokens` in all. Blocks keep names and contents; views of before end.
  void Extend(int32_t tokens);
  // `committed_tokens` slots are read-only for Forward.
  ContextView View(int32_t committed_tokens = 0) const {
    return {.memory = memory_, .blocks = blocks_, .committed_tokens = committed_tokens};
  }

 private:
  KvInfo kv_;
  KvMemory memory_;  // a mapping of its own
  std::vector<KvBlockName> blocks_;
};

// Runs tokens at positions first, first + 1, ... of the context; logits of the last one into
// `logits` [vocab_size] (may be null). Errors: as Model::Forward.
absl::Status Prefill(Model& model, const ScratchKv& kv, std::span<const int32_t> tokens,
                     int32_t first, float* logits);

// The most likely continuation of `prompt` (not empty), `count` tokens, lowest id on ties. Errors:
// as Model::Forward.
absl::StatusOr<std::vector<int32_t>> GreedyDecode(Model& model, std::span<const int32_t> prompt,
                                                  int32_t count);

}  // namespace withy::engine
