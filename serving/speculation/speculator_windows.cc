// What drafts do while a step waits for its streamed weights: a model whose weights are in memory
// goes on behind the leaves that the step verifies, and what is left of that below the accepted
// tokens is where the next step's tree begins. Either the engine thread computes passes of the low
// level, or draft_worker computes while it is lent the processors; never beside the step. Source:
// LLMCad section 3.4, the speculative generation pipeline.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/session/solo_answer.h"
#include "serving/speculation/speculator.h"

namespace withy::serving {
namespace {

using policy::DraftSourceKind;

// By the low level.
class PrefixWindows final : public StepWindows {
 public:
  PrefixWindows(std::unique_ptr<TreeGrower> growth, std::vector<Call*> calls, Clock& clock,
                WorkerMetrics& metrics)
      : growth_(std::move(growth)), calls_(std::move(calls)), clock_(clock), metrics_(metrics) {}

  bool Open(const std::atomic<bool>& arrived) override {
    const int64_t started = clock_.SteadyNanos();
    std::vector<int32_t> before;
    for (const Call* call : calls_) before.push_back(call->drafts->prefix.tree.size());
    const absl::StatusOr<bool> done = growth_->Run(&arrived);
    const int64_t ended = clock_.SteadyNanos();
    for (size_t i = 0; i < calls_.size(); ++i) {
      const int32_t drafted = calls_[i]->drafts->prefix.tree.size() - before[i];
      if (drafted == 0) continue;
      calls_[i]->session->speculation().window_drafted += drafted;
      metrics_.DraftedInWindow(calls_[i]->request.call_id, drafted, started, ended);
    }
    return done.ok() && !*done;
  }

 private:
  const std::unique_ptr<TreeGrower> growth_;
  const std::vector<Call*> calls_;
  Clock& clock_;
  WorkerMetrics& metrics_;
};

// By draft_worker.
class DraftWindows final : public StepWindows {
 public:
  explicit DraftWindows(DraftSource& draft) : draft_(draft) {}
  ~DraftWindows() override { draft_.EndGrowing(); }

  bool Open(const std::atomic<bool>& /*arrived*/) override {
    draft_.Lend();
    return true;
  }
  void Close() override { draft_.TakeBack(); }

 private:
  DraftSource& draft_;
};

}  // namespace

std::unique_ptr<StepWindows> Speculator::OpenWindows(std::span<Call* const> calls) {
  std::vector<policy::DraftedCall*> steps;
  std::vector<Call*> drafted;
  for (Call* call : calls) {
    if (call->drafts == nullptr) continue;
    drafted.push_back(call);
    steps.push_back(&call->drafts->step);
  }
  const std::optional<policy::DraftPlan::Ask> ask = policy::WindowAsk(plan_options_, steps);
  if (!ask.has_value()) return nullptr;
  std::vector<Call*> growing = Asked(*ask, drafted);
  return ask->source == DraftSourceKind::kDraft ? OpenDraftWindows(*ask, growing)
                                                : OpenPrefixWindows(*ask, std::move(growing));
}

std::unique_ptr<StepWindows> Speculator::OpenPrefixWindows(const policy::DraftPlan::Ask& ask,
                                                           std::vector<Call*> calls) {
  std::vector<TreeJob> jobs;
  for (size_t i = 0; i < calls.size(); ++i) {
    CallDrafts& drafts = *calls[i]->drafts;
    drafts.prefix.tree.AddPart(drafts.step.tree, drafts.step.chosen);
    drafts.prefix.Settle();
    jobs.push_back(PrefixJob(*calls[i], ask.limits[i]));
  }
  auto growth = prefix_.Begin(std::move(jobs));
  if (!growth.ok()) return nullptr;
  return std::make_unique<PrefixWindows>(*std::move(growth), std::move(calls), clock_, metrics_);
}

std::unique_ptr<StepWindows> Speculator::OpenDraftWindows(const policy::DraftPlan::Ask& ask,
                                                          std::span<Call* const> calls) {
  std::vector<DraftRequest> requests;
  for (size_t i = 0; i < calls.size(); ++i) {
    requests.push_back({.call_id = calls[i]->request.call_id,
                        .tokens = calls[i]->session->tokens(),
                        .sampling = calls[i]->session->sampling(),
                        .limits = ask.limits[i]});
  }
  options_.draft->BeginGrowing(requests);
  return std::make_unique<DraftWindows>(*options_.draft);
}

}  // namespace withy::serving
