// Where a draft head's KV of one call lies, and the hidden states that it goes on from. Neighbours:
// head_drafter.h fills it; tree_grower.h computes trees in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/head/draft_head.h"
#include "engine/model/scratch_kv.h"
#include "serving/session/session.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

// The head sees the call's tokens from the first one on that the target has computed for this call:
// nothing is known of those whose KV was there before. The answer's token at position p has the
// slot p, node i the slot tokens().size() + i. Drafted tokens that were accepted are computed
// again, from what the target's layers gave. Not thread-safe. What is passed in is borrowed.
class HeadTreeKv final : public TreeKv {
 public:
  HeadTreeKv(const engine::DraftHead& head, const Session& session)
      : session_(session), scratch_(head.info(), engine::kChunkTokens), states_(head.NewStates()) {}

  // The target has computed the token at `position`. Where this is not the one behind the last, the
  // head begins anew behind it.
  void Append(int32_t position, std::span<const float> features);
  // A tree is to grow behind tokens(), from its root on. False: what it goes on from is not known.
  bool BeginTree();
  // Tokens whose KV can be computed, beside the answer's last one.
  int32_t pending() const;
  // Rows of the first `count` of them.
  std::vector<engine::Row> PendingRows(int32_t count) const;

  std::span<const int32_t> tokens() const override { return session_.tokens(); }
  int32_t computed() const override { return computed_; }
  void set_computed(int32_t tokens) override;
  std::vector<int32_t> Place(std::span<const int32_t> nodes,
                             std::span<const int32_t> used) override;
  void Keep(std::span<const int32_t> path, std::span<int32_t> slots) override;
  engine::Row LastTokenRow() const override;
  engine::ContextView View() override;

 private:
  int32_t length() const { return static_cast<int32_t>(tokens().size()); }
  void MakeRoom(int32_t slots);

  const Session& session_;
  engine::ScratchKv scratch_;
  engine::HeadStates states_;
  int32_t computed_ = 0;
};

// What a draft head has of one call.
struct HeadDrafts {
  HeadDrafts(const engine::DraftHead& head, const Session& session) : kv(head, session) {}

  HeadTreeKv kv;
  KvTree tree;
};

}  // namespace withy::serving
