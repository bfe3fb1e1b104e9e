// Lets the target's own lowest level draft over a call's KV as the full model left it: its KV of
// tree nodes lies in slots behind those of the next decode step's rows, so that neither writes over
// the other's. Nothing of it stays in a context. Neighbours: tree_grower.h computes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serving/session/session.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

// For the engine thread. `session` is borrowed.
class SessionTreeKv final : public TreeKv {
 public:
  explicit SessionTreeKv(Session& session) : session_(session) {}

  std::span<const int32_t> tokens() const override { return session_.tokens(); }
  // The target has computed all but the last one, whose KV of the low level is that of a node.
  int32_t computed() const override { return static_cast<int32_t>(session_.tokens().size()) - 1; }
  void set_computed(int32_t /*tokens*/) override {}
  // The highest free ones: they are far from the rows of the steps to come.
  std::vector<int32_t> Place(std::span<const int32_t> nodes,
                             std::span<const int32_t> used) override;
  // What is where the next step's rows will be has to be computed again.
  void Keep(std::span<const int32_t> path, std::span<int32_t> slots) override;
  engine::Row LastTokenRow() const override { return session_.draft().LastTokenRow(); }
  engine::ContextView View() override { return session_.draft().View(); }

 private:
  Session& session_;
};

}  // namespace withy::serving
