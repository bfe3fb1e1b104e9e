// How the next decode steps of calls that share a pass are drafted: which sources are asked, in
// which order and for how much, and how much of the trees the pass verifies. Says whom to ask next;
// whoever drives it asks, and tells what came of it. Pure. Neighbours: speculation.h bounds what
// drafts may lose, tree_budget.h weighs rows, tree_growth.h grows what is asked for;
// serving/speculation/speculator.h drives it.
//
//   DraftPlan plan(options, learning, calls, may_ask_models);
//   while (const DraftPlan::Ask* ask = plan.next()) {
//     // adds what the source expects to the calls' trees
//     plan.OnDrafted({.ms = ..., .caught_up_ms = ...});
//   }
//   // the pass verifies DraftedCall::chosen
//   learning.OnStep(...);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "policy/draft/draft_tree.h"
#include "policy/draft/speculation.h"
#include "policy/draft/token_lookup.h"
#include "policy/draft/tree_budget.h"
#include "policy/draft/tree_growth.h"
#include "policy/draft/window_trial.h"

namespace withy::policy {

struct DraftOptions {
  // Every source is asked and the whole tree is verified, whatever it costs: for tests and
  // measurements.
  bool always = false;
  // Whether models draft on while a step waits for streamed weights.
  bool windows = true;
  int32_t max_tree_rows = 65;  // of a decode step of a call, 2..256
};

// What a model that drafts says of a call before its next step. Milliseconds.
struct DraftOffer {
  bool ready = false;             // it can draft now
  bool grows_in_windows = false;  // it may draft on while the step waits for its weights
  bool goes_on = false;    // its tree grew while the last step waited, and some of it is left
  double pass_ms = 0;      // of a pass for this call alone; known where it is ready
  double catch_up_ms = 0;  // what KV of the call's tokens takes before the first pass
  const RowCosts* rows = nullptr;  // how passes for several calls compare; null: they take the same
};

// Bounds of the tree of a step.
struct TreeBounds {
  int32_t depth = 0;
  int32_t nodes = 0;
};

// A call whose next step is drafted.
struct DraftedCall {
  // Told before the step.
  CallSpeculation speculation;
  SpeculationMode mode = SpeculationMode::kAuto;
  TreeBounds room = {};    // tokens that the answer may still have but its last one; free KV slots
  int32_t other_rows = 0;  // of other calls that decode in the same pass
  double plain_ms = 0;     // the pass without drafts; 0: no step is drafted
  double plain_so_far_ms = 0;  // that the answer would have taken without drafts
  std::array<DraftOffer, kDraftSourceKinds> offers = {};  // of models, by source
  DraftTree tree = {};  // begins with what is left of the last step's; sources add to it

  // Planned.
  TreeBounds bounds = {};
  std::vector<int32_t> chosen = {};  // nodes of the tree that are verified, parents first
  double expected_gain = 1;          // of them: tokens per time, ratio to plain decoding
  // The model by which the tree could go on growing while the step waits for weights, the same if
  // it does, and whether it has KV to compute before.
  std::optional<DraftSourceKind> window_source = {};
  std::optional<DraftSourceKind> windows = {};
  bool window_catches_up = false;
  double draft_ms = 0;                        // that drafting took, for any call of the step
  double catch_up_ms = 0;                     // of that: for KV of tokens from before
  std::optional<DraftSourceKind> model = {};  // that drafted for this call
  // The model that was asked for this call, had all its KV, and gave nothing.
  std::optional<DraftSourceKind> vain_model = {};
};

// A decode step that was computed.
struct DecodedStep {
  int32_t rows = 0;         // of the call, the answer's last token included
  int32_t batch_calls = 0;  // that decoded in it
  int32_t batch_rows = 0;   // of these
  double ms = 0;            // of the whole pass
  // The pass had rows of this call only, and nothing was computed in its middle.
  bool alone = false;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
};

// What became of a call's drafts in a step.
struct VerifiedDrafts {
  std::array<int32_t, kDraftSourceKinds> drafted = {};   // nodes that were verified, by source
  std::array<int32_t, kDraftSourceKinds> accepted = {};  // of them
  double plain_ms = 0;  // that the step's tokens would have taken without
  double took_ms = 0;   // that they took, drafting included
};

// What steps taught of this board: what rows cost, and whether windows pay. Not thread-safe.
class DraftLearning {
 public:
  // `measured`: as calibrated, may be empty. `streams`: the target's weights come from a disk.
  DraftLearning(std::span<const RowCost> measured, bool streams);

  const RowCosts& costs() const { return costs_; }
  // A pass without drafts that also has `other_rows` rows. `expected_ms`: of one row, on an idle
  // board.
  double PlainMs(double expected_ms, int32_t other_rows) const {
    return costs_.PlainMs(expected_ms) * costs_.Ratio(other_rows + 1);
  }
  bool windows_open(DraftSourceKind source) const { return TrialOf(source).open(); }
  bool windows_pay(DraftSourceKind source) const { return TrialOf(source).pays(); }
  // The step of a call was computed; `answer` are the tokens that it gave, at least one.
  // `expected_ms`: as above. Also teaches the states of `call`, whose step is over then; null: it
  // was not drafted.
  VerifiedDrafts OnStep(DraftedCall* call, const DecodedStep& step, double expected_ms,
                        std::span<const int32_t> answer);

 private:
  const WindowTrial& TrialOf(DraftSourceKind source) const {
    return trials_[static_cast<size_t>(source)];
  }
  void ObserveWindows(const DraftedCall& call, double tokens, double step_ms);

  RowCosts costs_;
  std::array<WindowTrial, kDraftSourceKinds> trials_;  // by source
};

// One step's plan. `calls` and `learning` are borrowed. Not thread-safe.
class DraftPlan {
 public:
  // A source that is to be asked, for some of the calls.
  struct Ask {
    DraftSourceKind source = DraftSourceKind::kLookup;
    std::vector<DraftedCall*> calls = {};
    std::vector<GrowthLimits> limits = {};  // of each of these calls' trees
    double patience_ms = 0;                 // how long the step may wait for it; 0: any time
  };
  // What came of it.
  struct Drafted {
    bool came = true;         // for some call; else nothing is known of how good its drafts are
    double ms = 0;            // that all calls of the step waited
    double caught_up_ms = 0;  // of that: for KV of the calls' tokens
  };

  // `calls`: that may be drafted; at least one. `may_ask_models`: a model's passes would delay no
  // other work.
  DraftPlan(const DraftOptions& options, const DraftLearning& learning,
            std::vector<DraftedCall*> calls, bool may_ask_models);

  // Whom to ask next; null: nobody, all is chosen. Valid until OnDrafted.
  const Ask* next() const { return ask_.calls.empty() ? nullptr : &ask_; }
  void OnDrafted(const Drafted& drafted);

 private:
  // Of two models the one with the larger rank is asked: whether it is due, what it gained, and
  // what its pass takes, negated.
  using SourceRank = std::tuple<bool, double, double>;
  // A model that may be asked.
  struct Model {
    DraftSourceKind source = DraftSourceKind::kPrefix;
    int32_t passes = 0;      // at most; 0: any number
    double patience_ms = 0;  // 0: any time
    SourceRank rank = {};    // the largest of the calls that it is asked for
  };

  void AskLookups();
  void OnLookedUp();
  void AskNextModel();
  static SourceRank RankOf(const DraftedCall& call, DraftSourceKind source);
  std::vector<Model> ModelsToAsk() const;
  std::vector<DraftedCall*> Askable(DraftSourceKind source) const;
  bool CanAsk(const DraftedCall& call, DraftSourceKind source) const;
  bool Afford(std::span<DraftedCall* const> asked, Model* model) const;
  GrowthLimits LimitsOf(const DraftedCall& call, const Model& model, double pass_ms,
                        size_t asked) const;
  std::optional<DraftSourceKind> WindowSource(const DraftedCall& call) const;
  void ChooseWindows(DraftedCall& call) const;
  void Choose(DraftedCall& call) const;
  void FitChosen() const;

  const DraftOptions options_;
  const DraftLearning& learning_;
  const std::vector<DraftedCall*> calls_;
  const bool may_ask_models_;
  // The step is not drafted: it tells what steps with drafts are compared with.
  const bool tells_;
  Ask ask_;
  std::deque<Model> models_;  // still to be asked
};

// Adds what followed the call's last tokens where they stood before. `depth`: 1 or more.
void AddMatches(const TokenLookup& lookup, std::span<const int32_t> tokens, int32_t depth,
                DraftedCall* call);

// Whether the draft model computes its KV of the call's prompt, and drafts behind it, while a step
// that computes the prompt waits for its weights: sets `windows`.
void PlanPromptWindow(const DraftOptions& options, const DraftLearning& learning,
                      DraftedCall* call);
// The model that lets trees go on growing while the step of these calls waits for its weights, and
// how far: one at a time, that of most calls. None: no tree is to grow.
std::optional<DraftPlan::Ask> WindowAsk(const DraftOptions& options,
                                        std::span<DraftedCall* const> calls);
// KV slots to claim for the rows of the call's steps to come and for drafts.
int32_t SlotsAhead(const DraftedCall& call);

}  // namespace withy::policy
