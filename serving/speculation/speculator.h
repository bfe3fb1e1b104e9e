// Drafts the decode steps of calls: asks the sources, cheapest first, merges what they expect into
// one tree, chooses how much of it the target verifies, and learns from what was accepted.
// Neighbours: policy/draft/speculation.h bounds what it may lose, session.h verifies, step_runner.h
// calls it around each step. Answers do not depend on it, their speed does.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/model/model.h"
#include "policy/call/level_pace.h"
#include "policy/draft/speculation.h"
#include "policy/draft/tree_budget.h"
#include "policy/draft/window_trial.h"
#include "serving/call/call_state.h"
#include "serving/call/scheduler_options.h"
#include "serving/call/step_windows.h"
#include "serving/call/worker_metrics.h"
#include "serving/speculation/prefix_drafter.h"

namespace withy::serving {

// A decode step that was computed.
struct DecodedStep {
  int32_t rows = 0;         // of the call, the answer's last token included
  int32_t batch_calls = 0;  // that decoded in it
  int32_t batch_rows = 0;   // of these
  double ms = 0;            // of the whole pass
  bool alone =
      false;  // the pass had rows of this call only, and nothing was computed in its middle
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
};

// The load beside the calls whose next step is drafted.
struct BesideCalls {
  int32_t other_rows = 0;                        // other calls that decode: one row each at least
  bool quiet = false;                            // a draft model's passes would delay no other work
  const std::atomic<bool>* interrupt = nullptr;  // ends them
};

// For the engine thread. Everything passed in is borrowed. Bounded: kApps apps of kContexts
// contexts, the ones used last, and kLookupTokens tokens of each app.
class Speculator {
 public:
  Speculator(engine::Model& model, const SpeculationOptions& options,
             const std::vector<policy::LevelPace>& levels, Clock& clock, WorkerMetrics& metrics);

  // Sets the trees of the next decode step of these calls, which share it.
  void Prepare(std::span<Call* const> calls, const BesideCalls& beside);
  // The step of these calls waits for its weights, so that trees may grow for the next one, beyond
  // what the step verifies. Null: there is nothing to grow. It must not outlive the step.
  std::unique_ptr<StepWindows> OpenWindows(std::span<Call* const> calls);
  // The step was computed, and its tokens were taken.
  void Observe(Call& call, const DecodedStep& step);
  // The call has ended, and keeps its session: what it said is looked up by later calls of its app.
  void Remember(Call& call);
  // The call is gone.
  void Forget(const Call& call);
  // The context was deleted: nothing that was said in it is looked up any more. Empty
  // `context_id`: the same of all that the app said.
  void ForgetContext(const std::string& app_id, const std::string& context_id);

 private:
  static constexpr size_t kApps = 16;
  static constexpr size_t kContexts = 256;
  static constexpr int32_t kLookupTokens = 1 << 16;  // of an app
  static constexpr int32_t kMostDepth = 32;
  static constexpr int32_t kMostMatches = 3;
  // GrowthLimits::branch_threshold of calls whose steps have windows.
  static constexpr double kWindowBranch = 0.05;

  // A draft model that is asked.
  struct Asked {
    policy::DraftSourceKind source = policy::DraftSourceKind::kPrefix;
    std::vector<Call*> calls = {};  // for which
    int32_t passes = 0;             // at most; 0: any number
    double patience_ms = 0;         // how long the step may wait for draft_worker; 0: any time
    double gain = 0;                // of the source, summed over these
  };

  CallDrafts& DraftsOf(Call& call);
  TreeBounds BoundsOf(const Call& call) const;
  const policy::LevelPace& PaceOf(const Call& call) const;
  // Begins the call's step; null: it decodes plainly.
  CallDrafts* Begin(Call& call, int32_t other_rows);
  void AddLookups(Call& call);
  void AskModels(std::span<Call* const> calls, const BesideCalls& beside);
  std::vector<Call*> Askable(std::span<Call* const> calls, policy::DraftSourceKind source) const;
  bool CanAsk(const Call& call, policy::DraftSourceKind source) const;
  bool Afford(std::span<Call* const> calls, Asked* asked) const;
  double WorkerPassMs(const Call& call) const;
  double CatchUpMs(const Call& call) const;
  double DraftPassMs(std::span<Call* const> asked, policy::DraftSourceKind source) const;
  void BeginWithKept(Call& call);
  std::optional<policy::DraftSourceKind> WindowSource(const Call& call) const;
  void ChooseWindows(Call& call, bool tells);
  void ObserveWindows(const Call& call, double tokens, double step_ms);
  policy::GrowthLimits WindowLimits(const Call& call) const;
  std::unique_ptr<StepWindows> OpenPrefixWindows(std::vector<Call*> calls);
  std::unique_ptr<StepWindows> OpenDraftWindows(std::span<Call* const> calls);
  void CountWindowTokens(const Call& call, const WindowTokens& grown);
  int32_t SlotsAhead(const CallDrafts& drafts) const;
  policy::GrowthLimits LimitsOf(const Asked& asked, const Call& call) const;
  void Grow(std::span<Call* const> calls, const Asked& asked, const std::atomic<bool>* interrupt);
  TreeJob PrefixJob(const Call& call, const policy::GrowthLimits& limits) const;
  void GrowByPrefix(const Asked& asked, const std::atomic<bool>* interrupt);
  DraftResult AskDraft(const Asked& asked);
  void Choose(Call& call);
  void FitChosen(std::span<Call* const> calls, int32_t other_rows);
  policy::ConfidenceFn ConfidenceOf(const Call& call) const;
  // How many drafted tokens the answer's new tokens follow; teaches how sure drafts are.
  int32_t FollowAnswer(Call& call, size_t verified);
  void OnModelVerified(const Call& call, size_t verified);

  engine::Model& model_;
  const SpeculationOptions options_;
  const std::vector<policy::LevelPace>& levels_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  policy::RowCosts costs_;
  PrefixDrafter prefix_;
  std::array<policy::WindowTrial, policy::kDraftSourceKinds> trials_;  // by source
  std::map<std::string, std::shared_ptr<AppDrafts>> apps_;
  uint64_t uses_ = 0;
};

}  // namespace withy::serving
