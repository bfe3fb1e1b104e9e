#include "bench/speculation/local_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "policy/constants.h"
#include "policy/draft/draft_plan.h"

namespace withy::bench {

class LocalDrafter::Windows final : public serving::StepWindows {
 public:
  Windows(LocalDrafter& drafter, serving::TreeDrafter::Growth growth)
      : drafter_(drafter), growth_(std::move(growth)) {}
  ~Windows() override { drafter_.Learn(drafter_.drafter_.EndGrowth(std::move(growth_))); }

  bool Open(const std::atomic<bool>& arrived) override {
    const absl::StatusOr<bool> done = growth_.Run(&arrived);
    return done.ok() && !*done;
  }

 private:
  LocalDrafter& drafter_;
  serving::TreeDrafter::Growth growth_;
};

LocalDrafter::LocalDrafter(engine::Model& draft, const Options& options, LimitsOf limits)
    : drafter_(draft, options.window, passes_, Clock::Real()),
      windows_(options.windows),
      limits_(std::move(limits)),
      pass_ms_(options.pass_ms),
      token_ms_(options.token_ms) {}

policy::DraftOffer LocalDrafter::Follow(const serving::DraftTask& task) {
  // The last token is computed by the first pass.
  const int32_t behind =
      static_cast<int32_t>(task.session.tokens().size()) - 1 - drafter_.computed(task.call_id);
  return {.ready = true,
          .grows_in_windows = windows_,
          .goes_on = task.drafts.step.windows == policy::DraftSourceKind::kDraft,
          .pass_ms = pass_ms_,
          .catch_up_ms = std::max(0, behind) * token_ms_};
}

serving::TreeRequest LocalDrafter::RequestOf(const serving::DraftTask& task) const {
  return {.call_id = task.call_id,
          .tokens = task.session.tokens(),
          .sampling = task.session.answer().sampling(),
          .limits = limits_ == nullptr ? task.limits : limits_(task)};
}

void LocalDrafter::Learn(const serving::CaughtUp& caught_up) {
  if (caught_up.tokens < static_cast<int32_t>(policy::kTellingDraftTokens)) return;
  token_ms_ = caught_up.ms / caught_up.tokens;
}

serving::DraftResult LocalDrafter::Grow(std::span<const serving::DraftTask> tasks,
                                        const serving::DraftTime& time) {
  std::vector<serving::TreeRequest> requests;
  for (const serving::DraftTask& task : tasks) requests.push_back(RequestOf(task));
  const int64_t started = Clock::Real().SteadyNanos();
  const double patience_ms = time.patience_ms > 0
                                 ? std::clamp(time.patience_ms, policy::kLeastDraftPatienceMs,
                                              policy::kMostDraftPatienceMs)
                                 : policy::kMostDraftPatienceMs;
  const auto out_of_patience = [&] {
    // LLMCad waits for its drafts, however long they take.
    return limits_ == nullptr && Millis(Clock::Real().SteadyNanos() - started) > patience_ms;
  };
  const auto grown = drafter_.Draft(requests, out_of_patience);
  if (!grown.ok()) return {};
  serving::DraftResult result{.came = true};
  for (size_t i = 0; i < tasks.size(); ++i) {
    const serving::GrownTree& one = (*grown)[i];
    pass_ms_ = one.pass_ms;
    Learn(one.caught_up);
    result.caught_up_ms += one.caught_up.ms;
    caught_up_ms_ += one.caught_up.ms;
    result.window_drafted += one.window_drafted;
    serving::SpeculationStats& stats = tasks[i].session.draft().stats();
    stats.window_drafted += one.window_drafted;
    stats.window_kept += one.window_kept;
    policy::DraftedCall& step = tasks[i].drafts.step;
    policy::DraftTree tree;
    for (const policy::DraftNode& node : one.tree.nodes()) {
      tree.Add(node.parent, node.token, step.speculation.Confidence(node.origin), node.origin);
    }
    step.tree.Merge(tree);
  }
  return result;
}

std::unique_ptr<serving::StepWindows> LocalDrafter::GrowMeanwhile(
    std::span<const serving::DraftTask> tasks) {
  std::vector<serving::TreeRequest> requests;
  for (const serving::DraftTask& task : tasks) requests.push_back(RequestOf(task));
  auto growth = drafter_.BeginGrowth(requests);
  if (!growth.ok()) return nullptr;
  return std::make_unique<Windows>(*this, *std::move(growth));
}

}  // namespace withy::bench
