// Drafts the decode steps of calls: asks the sources that policy/draft/draft_plan.h names, has the
// target verify what it chooses, and tells it what was accepted. Neighbours: session.h verifies,
// step_runner.h calls it around each step. Answers do not depend on it, their speed does.
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
#include "policy/draft/draft_plan.h"
#include "serving/call/call_state.h"
#include "serving/call/scheduler_options.h"
#include "serving/call/step_windows.h"
#include "serving/call/worker_metrics.h"
#include "serving/speculation/drafter.h"
#include "serving/speculation/head_drafter.h"
#include "serving/speculation/lookup_drafter.h"
#include "serving/speculation/prefix_drafter.h"

namespace withy::serving {

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
  // what the step verifies, and behind prompts that it computes, whose KV the draft model computes
  // before. Null: there is nothing to grow. It must not outlive the step.
  std::unique_ptr<StepWindows> OpenWindows(std::span<Call* const> calls);
  // A step is to begin that computes these rows of the call. Where a draft head goes on from them,
  // they get room in `features`, which must stay as long as the step.
  void AskFeatures(Call& call, std::span<engine::Row> rows, std::vector<float>* features);
  // Batch::feature_layers of steps.
  std::span<const int32_t> feature_layers() const;
  // The step was computed, and its tokens were taken: `features` are those of its rows, or empty.
  void TakeFeatures(Call& call, std::span<const engine::Row> rows, std::span<const float> features);
  // The step was computed, and its tokens were taken.
  void Observe(Call& call, const policy::DecodedStep& step);
  // The call has ended, and keeps its session: what it said, if it has an answer, is looked up by
  // later calls of its app.
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

  CallDrafts& DraftsOf(Call& call);
  const policy::LevelPace& PaceOf(const Call& call) const;
  bool Drafts(const Call& call) const;
  // Begins the call's step; null: it decodes plainly.
  CallDrafts* Begin(Call& call, int32_t other_rows);
  // The prompt of a call that may be drafted is computed.
  void BeginPrompt(Call& call);
  std::vector<DraftTask> TasksOf(const policy::DraftPlan::Ask& ask,
                                 std::span<Call* const> calls) const;
  policy::DraftPlan::Drafted Draft(const policy::DraftPlan::Ask& ask, std::span<Call* const> calls,
                                   const std::atomic<bool>* interrupt);

  engine::Model& model_;
  const SpeculationOptions options_;
  const policy::DraftOptions plan_options_;
  const std::vector<policy::LevelPace>& levels_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  policy::DraftLearning learning_;
  LookupDrafter lookup_;
  PrefixDrafter prefix_;
  std::optional<HeadDrafter> head_;  // none: the target has no draft head
  const std::array<Drafter*, policy::kDraftSourceKinds> drafters_;  // by source; null: none
  std::map<std::string, std::shared_ptr<AppDrafts>> apps_;
  uint64_t uses_ = 0;
};

}  // namespace withy::serving
