// What drafts: look-ups, the target's own lowest level, its draft head, the draft model of
// draft_worker. Neighbours: speculator.h asks between two decode steps, as
// policy/draft/draft_plan.h plans; lookup_drafter.h, prefix_drafter.h and head_drafter.h are in
// this process, the worker's draft_client.h asks draft_worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "policy/draft/draft_plan.h"
#include "policy/draft/tree_growth.h"
#include "serving/call/step_windows.h"
#include "serving/session/session.h"
#include "serving/speculation/call_drafts.h"

namespace withy::serving {

// A call that is drafted. What comes is added to `drafts.step.tree`, and counted in the session.
struct DraftTask {
  uint64_t call_id = 0;
  Session& session;
  CallDrafts& drafts;
  policy::GrowthLimits limits = {};
};

// How long a step waits for a drafter.
struct DraftTime {
  double patience_ms = 0;                        // 0: as long as it takes
  const std::atomic<bool>* interrupt = nullptr;  // ends it early; null: nothing does
};

struct DraftResult {
  bool came = false;        // for some call; else the trees are as they were
  double caught_up_ms = 0;  // that computing KV of the calls' tokens took
  // Tokens that grew in windows since the calls' last Grow, in another process.
  int32_t window_drafted = 0;
};

// For the engine thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // The call's next step begins behind session.tokens(), or one that computes its prompt is under
  // way; `drafts.step` is still that of its last one, but for its tree, which is empty: what is
  // left of a tree that grew since is added to it.
  virtual policy::DraftOffer Follow(const DraftTask& task) = 0;
  // Adds the tokens that are expected behind those of the calls, whose steps share a pass.
  virtual DraftResult Grow(std::span<const DraftTask> tasks, const DraftTime& time) = 0;
  // Lets trees grow while the calls' step waits for its weights, beyond what it verifies. Null:
  // nothing will grow. The result must not outlive the step.
  virtual std::unique_ptr<StepWindows> GrowMeanwhile(std::span<const DraftTask> tasks) = 0;
  // The call is over.
  virtual void Forget(uint64_t call_id) = 0;
};

}  // namespace withy::serving
