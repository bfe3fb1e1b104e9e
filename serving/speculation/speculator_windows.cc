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

// In a window time is there to be used: more branches grow than before a step, where each pass must
// pay, and more leaves in a pass.
constexpr int32_t kMostWindowNodes = 96;
constexpr int32_t kWindowLeaves = 4;
constexpr double kLeastWindowConfidence = 0.02;
// As kCatchUpShare in speculator.cc, for what is computed in windows: it makes steps a little
// longer, by half of what it takes at most.
constexpr double kWindowCatchUpShare = 0.5;
// Slots for the rows of steps, and for what grows meanwhile.
constexpr int32_t kWindowSlotsAhead = 64;

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

// What is left of the tree of the last step.
void Speculator::BeginWithKept(Call& call) {
  CallDrafts& drafts = *call.drafts;
  drafts.worker_grew = drafts.windows == DraftSourceKind::kDraft;
  if (drafts.windows != DraftSourceKind::kPrefix) drafts.prefix = {};
  drafts.prefix.Follow(drafts.prefix_kv);
  call.session->speculation().window_kept += drafts.prefix.grown();
  drafts.prefix.Settle();
  drafts.tree.Merge(drafts.prefix.tree);
}

// The model whose trees of this call may grow in windows; of two the one that gained more.
std::optional<DraftSourceKind> Speculator::WindowSource(const Call& call) const {
  if (!options_.windows) return std::nullopt;
  const policy::SpeculationMode mode = call.request.speculation;
  const bool by_prefix =
      prefix_.can_draft_in_windows() && policy::Allows(mode, DraftSourceKind::kPrefix) &&
      prefix_.CanDraftFor(engine::LevelIndex(model_.info(), call.session->level_percent()));
  const auto gain = [speculation = call.drafts->speculation()](DraftSourceKind source) {
    return speculation.GainOf(source).gain();
  };
  const bool by_draft =
      options_.draft != nullptr && options_.draft->grows_in_windows() &&
      policy::Allows(mode, DraftSourceKind::kDraft) &&
      (options_.always ||
       (call.drafts->speculation().GainOf(DraftSourceKind::kDraft).Asked() &&
        CatchUpMs(call) <= kWindowCatchUpShare * call.session->speculation().plain_ms));
  if (by_draft && (!by_prefix || gain(DraftSourceKind::kDraft) > gain(DraftSourceKind::kPrefix))) {
    return DraftSourceKind::kDraft;
  }
  return by_prefix ? std::optional(DraftSourceKind::kPrefix) : std::nullopt;
}

void Speculator::ChooseWindows(Call& call, bool tells) {
  CallDrafts& drafts = *call.drafts;
  drafts.window_source = WindowSource(call);
  drafts.window_catches_up = drafts.window_source == DraftSourceKind::kDraft && CatchUpMs(call) > 0;
  const bool open =
      drafts.window_source.has_value() &&
      (options_.always || (!tells && trials_[static_cast<size_t>(*drafts.window_source)].open()));
  drafts.windows = open ? drafts.window_source : std::nullopt;
}

// A plain step that others are compared with is neither of the two ways, and what a window gives
// that the draft's KV of the prompt is computed in comes later.
void Speculator::ObserveWindows(const Call& call, double tokens, double step_ms) {
  const CallDrafts& drafts = *call.drafts;
  if (!drafts.window_source.has_value() || drafts.window_catches_up) return;
  policy::WindowTrial& trial = trials_[static_cast<size_t>(*drafts.window_source)];
  const bool open = drafts.windows.has_value();
  if (open == trial.open()) {
    trial.OnStep(open, tokens, step_ms + drafts.draft_ms, drafts.plain_ms);
  }
}

// Slots to claim for the rows of steps to come and for drafts.
int32_t Speculator::SlotsAhead(const CallDrafts& drafts) const {
  if (drafts.windows == DraftSourceKind::kPrefix) return kWindowSlotsAhead;
  return drafts.tree.empty() ? 0 : kMostDepth / 2;
}

std::unique_ptr<StepWindows> Speculator::OpenWindows(std::span<Call* const> calls) {
  std::vector<Call*> by_prefix, by_draft;
  for (Call* call : calls) {
    if (call->drafts == nullptr || !call->drafts->windows.has_value()) continue;
    const bool prefix = *call->drafts->windows == DraftSourceKind::kPrefix;
    (prefix ? by_prefix : by_draft).push_back(call);
  }
  // One model at a time: the one of most calls.
  if (by_draft.size() > by_prefix.size()) return OpenDraftWindows(by_draft);
  return by_prefix.empty() ? nullptr : OpenPrefixWindows(std::move(by_prefix));
}

std::unique_ptr<StepWindows> Speculator::OpenPrefixWindows(std::vector<Call*> calls) {
  std::vector<TreeJob> jobs;
  for (const Call* call : calls) {
    CallDrafts& drafts = *call->drafts;
    drafts.prefix.tree.AddPart(drafts.tree, drafts.chosen);
    drafts.prefix.Settle();
    jobs.push_back(PrefixJob(*call, WindowLimits(*call)));
  }
  auto growth = prefix_.Begin(std::move(jobs));
  if (!growth.ok()) return nullptr;
  return std::make_unique<PrefixWindows>(*std::move(growth), std::move(calls), clock_, metrics_);
}

std::unique_ptr<StepWindows> Speculator::OpenDraftWindows(std::span<Call* const> calls) {
  std::vector<DraftRequest> requests;
  for (const Call* call : calls) {
    const policy::GrowthLimits limits = WindowLimits(*call);
    if (limits.max_depth < 1) continue;
    requests.push_back({.call_id = call->request.call_id,
                        .tokens = call->session->tokens(),
                        .sampling = call->session->sampling(),
                        .limits = limits});
  }
  if (requests.empty()) return nullptr;
  options_.draft->BeginGrowing(requests);
  return std::make_unique<DraftWindows>(*options_.draft);
}

policy::GrowthLimits Speculator::WindowLimits(const Call& call) const {
  const auto verified = static_cast<int32_t>(call.drafts->chosen.size());
  return {
      .max_nodes = std::clamp(2 * verified, kMostWindowNodes, policy::TokenTree::kMaxDraftedTokens),
      .max_depth = std::min(call.session->draft_room().depth, 2 * kMostDepth),
      .leaves_per_pass = kWindowLeaves,
      .alpha = options_.always ? 0 : kLeastWindowConfidence,
      .branch_threshold = kWindowBranch};
}

void Speculator::CountWindowTokens(const Call& call, const WindowTokens& grown) {
  call.session->speculation().window_drafted += grown.drafted;
  call.session->speculation().window_kept += grown.kept;
  metrics_.DraftedInWindow(static_cast<uint64_t>(grown.drafted));
}

}  // namespace withy::serving
