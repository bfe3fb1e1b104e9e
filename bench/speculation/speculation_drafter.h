// Grows a model's tree of drafts behind an answer pass by pass, and keeps what still fits when the
// answer goes on. So the tree may grow while the target verifies a part of it: LLMCad's speculative
// generation (section 3.4). Neighbours: speculation_decoder.h decodes with it,
// policy/draft/tree_growth.h says what is computed next.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/speculation/speculation_sequence.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/tree_growth.h"

namespace withy::bench {

// Not thread-safe. `sequence` is borrowed; until the next Follow nobody else computes tree nodes
// with it.
class TreeDrafter {
 public:
  // `level`: at which `sequence` drafts (-1: the full model). `ends`: tokens behind which nothing
  // follows.
  TreeDrafter(Sequence& sequence, policy::DraftSourceKind source, int32_t level,
              std::function<bool(int32_t)> ends)
      : sequence_(sequence), source_(source), level_(level), ends_(std::move(ends)) {}

  // The answer is `tokens` now. If it went along a branch of the tree, what follows there stays,
  // with its KV; else the tree is empty.
  void Follow(std::span<const int32_t> tokens);
  // One pass of the model behind `tokens`, as of the last Follow; false: the limits ask for none.
  // Errors: as Model::Forward.
  absl::StatusOr<bool> Step(std::span<const int32_t> tokens, const policy::GrowthLimits& limits,
                            const policy::ConfidenceFn& confidence);
  const policy::DraftTree& tree() const { return tree_; }
  int32_t passes() const { return passes_; }

 private:
  Sequence& sequence_;
  const policy::DraftSourceKind source_;
  const int32_t level_;
  const std::function<bool(int32_t)> ends_;
  policy::DraftTree tree_;
  int32_t length_ = 0;   // of the tokens behind which the tree is
  bool rooted_ = false;  // the last of them has been computed, and what follows it is in the tree
  int32_t passes_ = 0;
};

}  // namespace withy::bench
