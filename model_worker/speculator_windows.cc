// What drafts do while a step waits for its streamed weights: the low level, whose weights are in
// memory, goes on behind the leaves that the step verifies, and what is left of that below the
// accepted tokens is where the next step's tree begins. The engine thread computes either the step
// or a draft, never both. Source: LLMCad section 3.4, the speculative generation pipeline.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/session/solo_answer.h"
#include "model_worker/speculator.h"

namespace withy::model_worker {
namespace {

using policy::DraftSourceKind;

// In a window time is there to be used: more branches grow than before a step, where each pass must
// pay, and more leaves in a pass.
constexpr int32_t kMostWindowNodes = 96;
constexpr int32_t kWindowLeaves = 4;
constexpr double kLeastWindowConfidence = 0.02;
// Slots for the rows of steps, and for what grows meanwhile.
constexpr int32_t kWindowSlotsAhead = 64;

}  // namespace

// What is left of the tree of the last step.
void Speculator::BeginWithKept(Call& call) {
  CallDrafts& drafts = *call.drafts;
  if (!drafts.windows) drafts.prefix = {};
  call.session->speculation().window_kept += drafts.prefix.Follow(call.session->tokens());
  drafts.tree.Merge(drafts.prefix.tree);
}

bool Speculator::MayOpenWindows(const Call& call) const {
  return options_.windows && prefix_.can_draft_in_windows() &&
         policy::Allows(call.request.speculation, DraftSourceKind::kPrefix) &&
         prefix_.CanDraftFor(engine::LevelIndex(model_.info(), call.session->level_percent()));
}

// Slots to claim for the rows of steps to come and for drafts.
int32_t Speculator::SlotsAhead(const CallDrafts& drafts) const {
  if (drafts.windows) return kWindowSlotsAhead;
  return drafts.tree.empty() ? 0 : kMostDepth / 2;
}

std::unique_ptr<PrefixGrowth> Speculator::OpenWindows(std::span<Call* const> calls) {
  std::vector<PrefixJob> jobs;
  for (Call* call : calls) {
    if (call->drafts == nullptr || !call->drafts->windows) continue;
    CallDrafts& drafts = *call->drafts;
    drafts.prefix.Add(drafts.tree, drafts.chosen);
    const policy::GrowthLimits limits{
        .max_nodes = std::max(kMostWindowNodes, static_cast<int32_t>(drafts.chosen.size()) * 2),
        .max_depth = std::min(call->session->draft_room().depth, 2 * kMostDepth),
        .leaves_per_pass = kWindowLeaves,
        .alpha = options_.always ? 0 : kLeastWindowConfidence,
        .branch_threshold = kWindowBranch};
    jobs.push_back({.session = *call->session,
                    .tree = drafts.prefix,
                    .limits = limits,
                    .confidence = ConfidenceOf(*call)});
  }
  if (jobs.empty()) return nullptr;
  auto growth = prefix_.Begin(std::move(jobs));
  return growth.ok() ? *std::move(growth) : nullptr;
}

bool Speculator::GrowInWindow(PrefixGrowth& growth, std::span<Call* const> calls,
                              const std::atomic<bool>& arrived) {
  const int64_t started = clock_.SteadyNanos();
  std::vector<int32_t> before;
  for (const Call* call : calls) {
    before.push_back(call->drafts == nullptr ? 0 : call->drafts->prefix.tree.size());
  }
  const absl::StatusOr<bool> done = growth.Run(&arrived);
  const int64_t ended = clock_.SteadyNanos();
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i]->drafts == nullptr) continue;
    const int32_t drafted = calls[i]->drafts->prefix.tree.size() - before[i];
    if (drafted == 0) continue;
    calls[i]->session->speculation().window_drafted += drafted;
    metrics_.DraftedInWindow(calls[i]->request.call_id, drafted, started, ended);
  }
  return done.ok() && !*done;
}

}  // namespace withy::model_worker
