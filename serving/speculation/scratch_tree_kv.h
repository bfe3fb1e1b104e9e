// KV of an answer and of the tree behind it, in memory of the drafting model's own. Neighbours:
// tree_grower.h computes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/scratch_kv.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

// Node i has the slot tokens().size() + i. Accepted nodes keep their KV. Not thread-safe. `kv` is
// borrowed.
class ScratchTreeKv final : public TreeKv {
 public:
  // `level`: that drafts, as Row::level.
  explicit ScratchTreeKv(engine::ScratchKv& kv, int32_t level = -1) : kv_(kv), level_(level) {}

  // The answer is its first `known` tokens (at most as many as there are) and `added`. False: it
  // does not go on from the tokens that were here before.
  bool SetTokens(int32_t known, std::span<const int32_t> added);

  std::span<const int32_t> tokens() const override { return tokens_; }
  int32_t computed() const override { return computed_; }
  void set_computed(int32_t tokens) override { computed_ = tokens; }
  std::vector<int32_t> Place(std::span<const int32_t> nodes,
                             std::span<const int32_t> used) override;
  void Keep(std::span<const int32_t> path, std::span<int32_t> slots) override;
  engine::Row LastTokenRow() const override;
  engine::ContextView View() override { return kv_.View(); }

 private:
  int32_t length() const { return static_cast<int32_t>(tokens_.size()); }

  engine::ScratchKv& kv_;
  const int32_t level_;
  std::vector<int32_t> tokens_;
  int32_t computed_ = 0;
};

}  // namespace withy::serving
