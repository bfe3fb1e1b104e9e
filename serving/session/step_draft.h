// What is drafted behind the answer's last token: the token tree of the next decode step, the room
// for it, and the slots that growing a tree may use. Neighbours: step_rows.h makes rows of the
// tree; session.h follows it with the sampled tokens; serving/speculation/ chooses what is drafted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"
#include "policy/draft/token_tree.h"
#include "serving/call/call.h"
#include "serving/session/call_answer.h"
#include "serving/session/call_tokens.h"
#include "serving/session/context_kv.h"

namespace withy::serving {

// How far the next decode step may be drafted.
struct DraftRoom {
  int32_t depth = 0;  // tokens that the answer may still have, but its last one
  int32_t slots = 0;  // for drafted tokens
};

// Owned by the call's session; what is passed to the constructor outlives it. Not thread-safe.
class StepDraft {
 public:
  StepDraft(const engine::ModelInfo& model, const CallRequest& request, const CallTokens& tokens,
            const CallAnswer& answer, ContextKv& kv)
      : model_(model), request_(request), tokens_(tokens), answer_(answer), kv_(kv) {}

  // Sets the tokens that are computed beside the answer's last one in the next decode step.
  // Session::TakeLogits follows them as long as the sampled token is among them, so that one step
  // may give several tokens: the answer is the same as without. Tokens beyond the answer's bound or
  // the window are left out. Not while a step of this call is under way; holds for one step.
  // Errors: FAILED_PRECONDITION before the first token and after the last; else as
  // policy::TokenTree::Create.
  absl::Status Set(std::span<const policy::DraftedToken> tokens);
  DraftRoom room() const;
  // Slots to claim ahead for drafted tokens to come.
  void set_ahead(int32_t tokens) { ahead_ = tokens; }
  // Slots to claim behind the tokens that there are.
  int32_t slots_ahead() const;

  // The tree of the next step; its root alone without a draft.
  const policy::TokenTree& tree() const { return tree_; }
  policy::TokenTree TakeTree() { return std::exchange(tree_, policy::TokenTree()); }
  // Rows of the tree behind its root.
  int32_t rows() const { return tree_.rows() - 1; }
  // A step with the tree begins: no row has given attention yet.
  void ClearDensity();
  // The attention that drafted row `row` (>= 1) gives to chunks, [chunks], while its step is
  // computed and its logits are taken.
  std::span<float> DensityOfRow(int32_t row);

  // A row of the answer's last token by the model's lowest level, to draft what follows it. Its
  // slot is left to the caller.
  engine::Row LastTokenRow() const;
  // Slots for such rows, [first_slot, end_slot): behind those of the next decode step's rows, so
  // that the step may be under way. What is written there is written over or never named.
  int32_t first_slot() const { return tokens_.count() - 1 + tree_.rows(); }
  int32_t end_slot() const { return kv_.blocks().slots(); }
  // View for such rows, whose attention does not count.
  engine::ContextView View();

  SpeculationStats& stats() { return stats_; }
  const SpeculationStats& stats() const { return stats_; }

 private:
  const engine::ModelInfo& model_;
  const CallRequest& request_;
  const CallTokens& tokens_;
  const CallAnswer& answer_;
  ContextKv& kv_;
  policy::TokenTree tree_;
  std::vector<float> density_;  // [row - 1, chunk]: it counts once the row is accepted
  size_t density_chunks_ = 0;
  int32_t ahead_ = 0;
  SpeculationStats stats_;
};

}  // namespace withy::serving
