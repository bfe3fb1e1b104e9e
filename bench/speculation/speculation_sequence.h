// A model with the KV of one sequence of tokens and of a tree of drafts behind it, in this process.
// Neighbours: speculation_decoder.h decodes with a target's and a draft's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "policy/draft/draft_tree.h"

namespace withy::bench {

// What may be done between two layers of a pass. `done`: share of the pass, 0..1.
using BetweenLayers = std::function<absl::Status(double done)>;

// Natural logarithm of the probability of `token`.
double LogProbability(std::span<const float> logits, int32_t token);

// A model with the KV of one sequence. Not thread-safe. `model` is borrowed.
class Sequence {
 public:
  // `tokens`: most that it may have, drafted ones included.
  Sequence(engine::Model& model, int32_t tokens);

  engine::ScratchKv& kv() { return kv_; }
  // Computes all of `tokens` but the last, as far as they have no KV.
  absl::Status CatchUp(std::span<const int32_t> tokens);
  // KV of tokens from here on is no longer theirs.
  void Forget(int32_t from) { computed_ = std::min(computed_, from); }
  // Computes the last of `tokens` (node -1) and nodes of a tree behind it, each behind its
  // ancestors; the logits of them all, [nodes, vocab]. `level`: index into ModelInfo::levels; KV
  // that a lower level than the full one (-1) writes counts as not computed. `between`: called
  // after each layer but the last; another model may compute meanwhile. Errors: as Model::Forward;
  // those of `between`.
  absl::StatusOr<std::span<const float>> Compute(std::span<const int32_t> tokens,
                                                 const policy::DraftTree& tree,
                                                 std::span<const int32_t> nodes, int32_t level = -1,
                                                 const BetweenLayers& between = {});
  // The node, whose parent was accepted before it, became the token at `position`: its KV moves
  // there.
  void Accept(int32_t length, int32_t node, int32_t position);
  void Move(int32_t from, int32_t to) { kv_.Copy(from, to); }
  // Computes the tokens [first, end) as they stand; logits of each, or of the last alone.
  absl::StatusOr<std::span<const float>> ComputeTokens(std::span<const int32_t> tokens,
                                                       int32_t first, bool all_logits = true);
  int32_t computed() const { return computed_; }

 private:
  engine::Model& model_;
  engine::ScratchKv kv_;
  std::vector<float> logits_;
  int32_t computed_ = 0;
};

}  // namespace withy::bench
