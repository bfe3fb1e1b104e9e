// Grows token trees behind answers with a model: follows an answer, chooses the rows of a pass,
// computes it, in one go or in slices, and extends the trees. One for all that drafts:
// draft_worker, the target's own lowest level and its draft head, the benchmarks. Where KV lies is
// up to a TreeKv. Neighbours: policy/draft/tree_growth.h says which leaves come next;
// scratch_tree_kv.h and session_tree_kv.h are the places. Source: LLMCad sections 3.2 to 3.4;
// drafting with the target's own lowest level is ours.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/model.h"
#include "engine/sampling/draft_sampler.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/tree_growth.h"

namespace withy::serving {

// The tokens of one answer, and where a model's KV of them and of the nodes behind them lies. Node
// -1 is the last token. Not thread-safe.
class TreeKv {
 public:
  static constexpr int32_t kNoSlot = -1;

  virtual ~TreeKv() = default;
  // Prompt and answer; not empty.
  virtual std::span<const int32_t> tokens() const = 0;
  // How many of them, the first ones, have KV.
  virtual int32_t computed() const = 0;
  virtual void set_computed(int32_t tokens) = 0;
  // Slots for KV of `nodes` (ascending), apart from those in `used`. Empty: there are too few.
  virtual std::vector<int32_t> Place(std::span<const int32_t> nodes,
                                     std::span<const int32_t> used) = 0;
  // The answer went on by nodes with the slots `path`, the root's child first; none: it did not.
  // `slots`: of the nodes that are left, the last token first. Sets each to where its KV is now;
  // kNoSlot: it has to be computed again.
  virtual void Keep(std::span<const int32_t> path, std::span<int32_t> slots) = 0;
  // A row of the last token, at its position, of the level that drafts; the slot is not set.
  virtual engine::Row LastTokenRow() const = 0;
  virtual engine::ContextView View() = 0;
};

// A tree behind an answer's tokens, and the slots of its nodes that have KV. Not thread-safe.
class KvTree {
 public:
  policy::DraftTree tree;

  // The answer has kv.tokens() now: of the tree, what is below the new ones is left, with its KV.
  void Follow(TreeKv& kv);
  void Clear();
  // Nodes that came since the last Settle and are left.
  int32_t grown() const { return tree.size() - settled_; }
  void Settle() { settled_ = tree.size(); }

  // Of node -1, too. kNoSlot: it has no KV.
  int32_t SlotOf(int32_t node) const;
  void SetSlot(int32_t node, int32_t slot);
  std::span<int32_t> slots() { return slots_; }

 private:
  size_t length_ = 0;           // tokens of the answer that it is behind
  int32_t settled_ = 0;         // nodes, the first ones, that were there at the last Settle
  std::vector<int32_t> slots_;  // [node + 1]; what is not there has none
};

// One of several trees that grow in shared passes. All is borrowed.
struct TreeJob {
  uint64_t call_id = 0;
  KvTree& tree;  // follows `kv` already
  TreeKv& kv;
  const engine::SamplingParams& sampling;  // of the target; nothing follows its `unpenalized`
  policy::GrowthLimits limits;
  policy::ConfidenceFn confidence;
};

// Tokens of calls whose KV was computed before their trees, and the computing that it took.
struct CaughtUp {
  int32_t tokens = 0;
  double ms = 0;
};

// What grows trees. All is borrowed; `logits` is scratch that one grower uses at a time.
struct GrowerParts {
  engine::RowModel& model;
  engine::PassNumbers& passes;  // names passes: one that several calls share belongs to none
  Clock& clock;
  std::vector<float>& logits;
  policy::DraftSourceKind source = policy::DraftSourceKind::kDraft;
};

// Each tree grows as if it were alone. Not thread-safe.
class TreeGrower {
 public:
  // Tokens of an answer whose KV is computed in one pass. A grower that is stopped while it catches
  // up keeps whole pieces.
  static constexpr int32_t kPieceRows = 16;

  // Errors: as DraftSampler::Create.
  static absl::StatusOr<std::unique_ptr<TreeGrower>> Create(const GrowerParts& parts,
                                                            std::vector<TreeJob> jobs);

  // Extends the trees by what the last pass gave and begins the next one, unless one is under way;
  // false: all trees are done. A pass computes what an answer's tokens but the last lack, or leaves
  // of all trees. Errors: of the engine or the sampler; the trees are what they are then, and the
  // grower is of no more use.
  absl::StatusOr<bool> Begin();
  // Computes the pass; false: `*stop` became true first, and the next Compute goes on in its
  // middle. Errors: of the engine.
  absl::StatusOr<bool> Compute(const std::atomic<bool>* stop);
  // Extends the trees by what the last pass gave, as Begin does first: for the last pass before the
  // grower goes. Errors: of the sampler.
  absl::Status Finish();
  // All until all trees are done; false: stopped. Errors: as these.
  absl::StatusOr<bool> Run(const std::atomic<bool>* stop);

  // Of the last pass.
  int32_t rows() const { return static_cast<int32_t>(rows_.size()); }
  double pass_ms() const { return pass_ms_; }  // of all its slices
  bool extends() const { return catching_up_ == nullptr; }
  // That extended trees.
  int32_t passes() const { return passes_; }
  const CaughtUp& caught_up(size_t job) const { return growing_[job].caught_up; }

 private:
  struct Growing {
    TreeJob job;
    engine::DraftSampler sampler;
    policy::TreeGrowth growth;
    std::vector<int32_t> leaves = {};    // that the pass computes, in the order that they go on
    std::vector<int32_t> computed = {};  // nodes that it computes, ascending
    std::vector<int32_t> slots = {};     // of these
    CaughtUp caught_up = {};
  };

  explicit TreeGrower(const GrowerParts& parts) : parts_(parts) {}

  static void ChooseRows(Growing* one);
  void AppendPiece(Growing& one);
  void AppendRows(const Growing& one);
  uint64_t OnlyCall() const;
  absl::Status Extend(Growing& one, size_t* logits_row);

  const GrowerParts parts_;
  std::vector<Growing> growing_;
  int32_t passes_ = 0;

  // Of the pass under way, which refers to them.
  Growing* catching_up_ = nullptr;  // whose tokens it computes; null: it extends trees
  std::vector<engine::Row> rows_;
  std::vector<engine::ContextView> views_;
  std::vector<std::vector<int32_t>> ancestors_;  // of each row
  double pass_ms_ = 0;
  bool computed_ = false;  // and its results are not taken
  std::unique_ptr<engine::Pass> pass_;
};

}  // namespace withy::serving
