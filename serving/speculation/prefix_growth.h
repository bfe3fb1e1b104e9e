// Grows token trees with the target's own lowest level, over the calls' KV as the full model left
// it: several calls in passes that they share, in one go or in slices. Neighbours:
// policy/draft/tree_growth.h says what to compute; prefix_drafter.h lets trees grow before a step,
// speculator_windows.cc while a step waits for its weights. Source: LLMCad section 3.4;
// drafting with the target's own lowest level is ours.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/sampling/draft_sampler.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/tree_growth.h"
#include "serving/session/session.h"

namespace withy::serving {

// A tree behind a call's tokens, and where the low level has KV of its nodes: in slots behind those
// of the next decode step's rows, so that neither writes over the other's. Nothing of this KV stays
// in a context. Not thread-safe.
class PrefixTree {
 public:
  static constexpr int32_t kNoSlot = -1;

  policy::DraftTree tree;

  // The call has `tokens` now: of the tree, what is below the new ones is left, with its KV.
  // Returns how many nodes are left of those that grew since the last Add.
  int32_t Follow(std::span<const int32_t> tokens);
  // Adds nodes of another tree behind the same tokens; `chosen` has parents before their children.
  void Add(const policy::DraftTree& other, std::span<const int32_t> chosen);
  // Slot of a node's KV, -1: of the call's last token; kNoSlot: it is not computed.
  int32_t SlotOf(int32_t node) const;
  void SetSlot(int32_t node, int32_t slot);
  // Slots outside [first, end) are used otherwise: what is there has to be computed again.
  void KeepSlots(int32_t first, int32_t end);
  std::span<const int32_t> slots() const { return slots_; }

 private:
  size_t length_ = 0;           // tokens of the call that it is behind
  int32_t old_ = 0;             // nodes, the first ones, that did not grow since Add or Follow
  std::vector<int32_t> slots_;  // [node + 1]; what is not there has none
};

struct PrefixJob {
  Session& session;
  PrefixTree& tree;  // that grows
  policy::GrowthLimits limits;
  policy::ConfidenceFn confidence;
};

// For the engine thread, and no longer than the sessions' next step. Everything passed in is
// borrowed. Each tree grows as if it were alone.
class PrefixGrowth {
 public:
  // Told of each pass of the low level: its rows, and what it took in all its slices.
  using OnPass = std::function<void(int32_t rows, double ms)>;

  // `passes` names its passes: one that several calls share belongs to none. Errors: as
  // DraftSampler::Create.
  static absl::StatusOr<std::unique_ptr<PrefixGrowth>> Create(engine::Model& model,
                                                              engine::PassNumbers& passes,
                                                              Clock& clock,
                                                              std::vector<PrefixJob> jobs,
                                                              OnPass on_pass = {});
  // Grows the trees until all are done, or `*stop` becomes true: then it returns false, and the
  // next Run goes on in the middle of a pass. Errors: of the engine or the sampler; the trees are
  // what they are then, and Run is not called again.
  absl::StatusOr<bool> Run(const std::atomic<bool>* stop);
  std::span<const PrefixJob> jobs() const { return jobs_; }

 private:
  struct Growing {
    PrefixJob& job;
    engine::DraftSampler sampler;
    policy::TreeGrowth growth;
    std::vector<int32_t> leaves = {};    // that the pass computes, ascending
    std::vector<int32_t> computed = {};  // nodes that it computes, ascending
    std::vector<int32_t> slots = {};     // of these
  };

  PrefixGrowth(engine::Model& model, engine::PassNumbers& passes, Clock& clock,
               std::vector<PrefixJob> jobs, OnPass on_pass)
      : model_(model),
        pass_numbers_(passes),
        clock_(clock),
        jobs_(std::move(jobs)),
        on_pass_(std::move(on_pass)) {}

  absl::Status Begin();
  uint64_t OnlyCall() const;
  static void ChooseRows(Growing* one);
  void AppendRows(const Growing& one);
  absl::Status Extend();

  engine::Model& model_;
  engine::PassNumbers& pass_numbers_;
  Clock& clock_;
  std::vector<PrefixJob> jobs_;
  const OnPass on_pass_;
  std::vector<Growing> growing_;

  // Of the pass under way, which refers to them.
  std::vector<engine::Row> rows_;
  std::vector<engine::ContextView> views_;
  std::vector<std::vector<int32_t>> ancestors_;  // of each row
  std::vector<float> logits_;
  double pass_ms_ = 0;
  std::unique_ptr<engine::Pass> pass_;
};

}  // namespace withy::serving
