// Decodes greedily with a target and a draft model in this process, in the ways that LLMCad
// compares: plainly, linear speculation, token trees with a fixed or an adapting threshold, and the
// lossy Big Little Decoder. Without a service, control or batches: what a technique alone brings.
// Neighbours: policy/ grows trees; speculation_figures.cc compares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "policy/draft_confidence.h"
#include "policy/draft_tree.h"
#include "policy/tree_growth.h"

namespace withy::bench {

// A model with the KV of one sequence. Not thread-safe. `model` is borrowed.
class Sequence {
 public:
  // `tokens`: most that it may have, drafted ones included.
  Sequence(engine::Model& model, int32_t tokens);

  engine::Model& model() { return model_; }
  // Computes all of `tokens` but the last, as far as they have no KV.
  absl::Status CatchUp(std::span<const int32_t> tokens);
  // KV of tokens from here on is no longer theirs.
  void Forget(int32_t from) { computed_ = std::min(computed_, from); }
  // Computes the last of `tokens` (node -1) and nodes of a tree behind it, each behind its
  // ancestors; the logits of them all, [nodes, vocab]. Errors: as Model::Forward.
  absl::StatusOr<std::span<const float>> Compute(std::span<const int32_t> tokens,
                                                 const policy::DraftTree& tree,
                                                 std::span<const int32_t> nodes);
  // The node, whose parent was accepted before it, became the token at `position`: its KV moves
  // there.
  void Accept(int32_t length, int32_t node, int32_t position);
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

struct DecodeWay {
  int32_t chain = 0;      // drafted tokens a pass, in a line
  bool tree = false;      // branches and the pacer
  bool adaptive = false;  // alpha follows eq. 3
  // Big Little Decoder (Kim et al. 2023): the draft answers as long as it is surer than `fallback`;
  // then the target replaces the first of its tokens that is less likely than exp(-rollback) and
  // all behind it. 0: not so.
  double fallback = 0;
  double rollback = 0;
};

struct DecodedAnswer {
  std::vector<int32_t> tokens;
  int32_t target_passes = 0;
  int32_t draft_passes = 0;
  int64_t drafted = 0;   // tokens that were verified
  int64_t accepted = 0;  // of them
  double ms = 0;         // prompt aside
};

// Not thread-safe. Models of one vocabulary; borrowed.
class PairDecoder {
 public:
  PairDecoder(engine::Model& target, engine::Model& draft, std::function<bool(int32_t)> ends)
      : target_(target), draft_(draft), ends_(std::move(ends)) {}

  // At most `count` tokens behind `prompt` (not empty). Errors: as Model::Forward.
  absl::StatusOr<DecodedAnswer> Decode(std::span<const int32_t> prompt, int32_t count,
                                       const DecodeWay& way);

 private:
  absl::Status DecodeLossless(std::vector<int32_t> tokens, size_t end, const DecodeWay& way);
  absl::Status DecodeBigLittle(std::vector<int32_t> tokens, size_t end, const DecodeWay& way);
  absl::StatusOr<policy::DraftTree> Draft(std::span<const int32_t> tokens, int32_t most,
                                          const DecodeWay& way);
  bool Append(std::vector<int32_t>* tokens, int32_t token, size_t end) const {
    tokens->push_back(token);
    return ends_(token) || tokens->size() >= end;
  }

  engine::Model& target_;
  engine::Model& draft_;
  const std::function<bool(int32_t)> ends_;
  // Of the answer under way.
  std::unique_ptr<Sequence> target_sequence_, draft_sequence_;
  policy::FallbackThreshold threshold_;
  DecodedAnswer answer_;
  size_t prompt_tokens_ = 0;
};

}  // namespace withy::bench
