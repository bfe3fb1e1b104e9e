// A model with the KV of one sequence of tokens, in this process. Neighbours: big_little.h decodes
// with two, speculation_figures.cc times passes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "policy/draft/draft_tree.h"

namespace withy::bench {

// Not thread-safe. `model` is borrowed.
class ModelTokens {
 public:
  // `tokens`: most that it may have, drafted ones included.
  ModelTokens(engine::Model& model, int32_t tokens) : model_(model), kv_(model.info(), tokens) {}

  int32_t computed() const { return computed_; }
  // Computes all of `tokens` but the last, as far as they have no KV. Errors: as Model::Forward.
  absl::Status CatchUp(std::span<const int32_t> tokens);
  // KV of tokens from here on is no longer theirs.
  void Forget(int32_t from) { computed_ = std::min(computed_, from); }
  // Computes the tokens from `first` on; logits of each, or of the last alone. Errors: as
  // Model::Forward.
  absl::StatusOr<std::span<const float>> Compute(std::span<const int32_t> tokens, int32_t first,
                                                 bool all_logits = true);
  // Computes nodes of a tree behind the last token, each behind its ancestors, whose KV is there.
  // Errors: as Model::Forward.
  absl::Status ComputeNodes(int32_t length, const policy::DraftTree& tree,
                            std::span<const int32_t> nodes);

 private:
  absl::StatusOr<std::span<const float>> Forward(std::span<const engine::Row> rows);

  engine::Model& model_;
  engine::ScratchKv kv_;
  std::vector<float> logits_;
  int32_t computed_ = 0;
};

}  // namespace withy::bench
