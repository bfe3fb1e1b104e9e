#include "serving/speculation/speculator.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "engine/session/solo_answer.h"
#include "serving/speculation/allowed_drafts.h"

namespace withy::serving {
namespace {

using policy::DraftSourceKind;

// Whose text a lookup has, of the contexts of an app. Contexts that share a number are forgotten
// together, which costs speed alone.
uint32_t OwnerOf(const std::string& context_id) {
  if (context_id.empty()) return 0;
  return std::max(1u, static_cast<uint32_t>(std::hash<std::string>()(context_id)));
}

// The entry of `key`; makes room for it by leaving out the one that was used longest ago.
template <typename Map, typename Make>
auto& EntryOf(Map& map, const std::string& key, size_t limit, const Make& make) {
  const auto found = map.find(key);
  if (found != map.end()) return found->second;
  if (map.size() >= limit) {
    map.erase(std::min_element(map.begin(), map.end(), [](const auto& a, const auto& b) {
      return a.second->last_used < b.second->last_used;
    }));
  }
  return map.emplace(key, make()).first->second;
}

std::optional<HeadDrafter> HeadOf(const SpeculationOptions& options, const engine::Model& model,
                                  const std::vector<policy::LevelPace>& levels, Clock& clock,
                                  WorkerMetrics& metrics) {
  if (options.head == nullptr) return std::nullopt;
  return HeadDrafter(*options.head, model.info(), levels.back(), clock, metrics);
}

}  // namespace

Speculator::Speculator(engine::Model& model, const SpeculationOptions& options,
                       const std::vector<policy::LevelPace>& levels, Clock& clock,
                       WorkerMetrics& metrics)
    : model_(model),
      options_(options),
      plan_options_{.always = options.always,
                    .windows = options.windows,
                    .max_tree_rows = options.max_tree_rows},
      levels_(levels),
      clock_(clock),
      metrics_(metrics),
      learning_(options.row_costs, model.weight_stats().streams()),
      prefix_(model, options.row_costs, levels.front(), clock, metrics),
      head_(HeadOf(options, model, levels, clock, metrics)),
      drafters_{&lookup_, &prefix_, options.draft, head_.has_value() ? &*head_ : nullptr} {}

CallDrafts& Speculator::DraftsOf(Call& call) {
  if (call.drafts != nullptr) return *call.drafts;
  const CallRequest& request = call.request;
  const auto tokens = static_cast<int32_t>(call.session->tokens().size());
  const std::shared_ptr<AppDrafts> app = EntryOf(
      apps_, request.app_id, kApps, [] { return std::make_shared<AppDrafts>(kLookupTokens); });
  app->last_used = ++uses_;
  std::shared_ptr<ContextDrafts> context = std::make_shared<ContextDrafts>();
  if (!request.context_id.empty()) {
    context = EntryOf(app->contexts, request.context_id, kContexts, [&] { return context; });
    context->last_used = uses_;
  }
  call.drafts =
      std::make_unique<CallDrafts>(tokens + request.answer.max_tokens, app, context, *call.session);
  return *call.drafts;
}

const policy::LevelPace& Speculator::PaceOf(const Call& call) const {
  const int32_t level = engine::LevelIndex(model_.info(), call.session->level_percent());
  return level < 0 ? levels_.back() : levels_[static_cast<size_t>(level)];
}

void Speculator::Prepare(std::span<Call* const> calls, const BesideCalls& beside) {
  std::vector<Call*> drafted;
  std::vector<policy::DraftedCall*> steps;
  const int32_t others = beside.other_rows + static_cast<int32_t>(calls.size()) - 1;
  for (Call* call : calls) {
    CallDrafts* const drafts = Begin(*call, others);
    if (drafts == nullptr) continue;
    drafted.push_back(call);
    steps.push_back(&drafts->step);
  }
  if (drafted.empty()) return;
  // A call that is not drafted must not wait for a draft model.
  policy::DraftPlan plan(plan_options_, learning_, std::move(steps),
                         beside.quiet && drafted.size() == calls.size());
  while (const policy::DraftPlan::Ask* ask = plan.next()) {
    plan.OnDrafted(Draft(*ask, drafted, beside.interrupt));
  }
  for (Call* call : drafted) {
    policy::DraftedCall& step = call->drafts->step;
    call->session->draft().set_ahead(policy::SlotsAhead(step));
    // A draft that is refused costs speed alone: the step decodes plainly.
    if (!call->session->draft().Set(policy::ToDrafted(step.tree, step.chosen)).ok()) {
      step.chosen.clear();
    }
  }
}

bool Speculator::Drafts(const Call& call) const {
  return options_.enabled && !call.request.rebuild &&
         call.request.speculation != policy::SpeculationMode::kOff;
}

void Speculator::BeginPrompt(Call& call) {
  CallDrafts& drafts = DraftsOf(call);
  policy::DraftedCall& step = drafts.step;
  step.tree = {};
  step.mode = call.request.speculation;
  step.room = {.depth = call.session->draft().room().depth};
  constexpr auto kDraft = static_cast<size_t>(DraftSourceKind::kDraft);
  if (drafters_[kDraft] == nullptr) return;
  step.offers[kDraft] = drafters_[kDraft]->Follow(
      {.call_id = call.request.call_id, .session = *call.session, .drafts = drafts});
  policy::PlanPromptWindow(plan_options_, learning_, &step);
}

CallDrafts* Speculator::Begin(Call& call, int32_t other_rows) {
  if (!Drafts(call)) return nullptr;
  CallDrafts& drafts = DraftsOf(call);
  Session& session = *call.session;
  drafts.tokens_before = session.tokens().size();
  policy::DraftedCall& step = drafts.step;
  step.tree = {};
  step.mode = call.request.speculation;
  step.room = {.depth = session.draft().room().depth, .nodes = session.draft().room().slots};
  step.other_rows = other_rows;
  step.plain_ms = learning_.PlainMs(PaceOf(call).TokenMs(session.rows().computed()), other_rows);
  step.plain_so_far_ms = session.draft().stats().plain_ms;
  for (size_t i = 0; i < drafters_.size(); ++i) {
    if (drafters_[i] == nullptr) continue;
    step.offers[i] = drafters_[i]->Follow(
        {.call_id = call.request.call_id, .session = session, .drafts = drafts});
  }
  CutForbidden(session.answer().constraint(), &step.tree);
  return &drafts;
}

// Of those of the calls that are asked for.
std::vector<DraftTask> Speculator::TasksOf(const policy::DraftPlan::Ask& ask,
                                           std::span<Call* const> calls) const {
  std::vector<DraftTask> tasks;
  for (Call* call : calls) {
    const auto found = std::find(ask.calls.begin(), ask.calls.end(), &call->drafts->step);
    if (found == ask.calls.end()) continue;
    tasks.push_back({.call_id = call->request.call_id,
                     .session = *call->session,
                     .drafts = *call->drafts,
                     .limits = ask.limits[static_cast<size_t>(found - ask.calls.begin())]});
  }
  return tasks;
}

// All of `calls` wait.
policy::DraftPlan::Drafted Speculator::Draft(const policy::DraftPlan::Ask& ask,
                                             std::span<Call* const> calls,
                                             const std::atomic<bool>* interrupt) {
  const std::vector<DraftTask> tasks = TasksOf(ask, calls);
  std::vector<int32_t> before;
  for (const DraftTask& task : tasks) before.push_back(task.drafts.step.tree.size());
  const int64_t started = clock_.SteadyNanos();
  const DraftResult result = drafters_[static_cast<size_t>(ask.source)]->Grow(
      tasks, {.patience_ms = ask.patience_ms, .interrupt = interrupt});
  for (const DraftTask& task : tasks) {
    CutForbidden(task.session.answer().constraint(), &task.drafts.step.tree);
  }
  const int64_t ended = clock_.SteadyNanos();
  for (size_t i = 0; i < tasks.size() && ask.source != DraftSourceKind::kLookup; ++i) {
    metrics_.Drafted(tasks[i].call_id, tasks[i].drafts.step.tree.size() - before[i], started,
                     ended);
    tasks[i].session.draft().stats().draft_ns += ended - started;
  }
  metrics_.DraftedInWindow(static_cast<uint64_t>(result.window_drafted));
  return {.came = result.came, .ms = Millis(ended - started), .caught_up_ms = result.caught_up_ms};
}

std::unique_ptr<StepWindows> Speculator::OpenWindows(std::span<Call* const> calls) {
  std::vector<policy::DraftedCall*> steps;
  std::vector<Call*> drafted;
  for (Call* call : calls) {
    if (!Drafts(*call)) continue;
    if (!call->session->decoding()) BeginPrompt(*call);
    if (call->drafts == nullptr) continue;
    drafted.push_back(call);
    steps.push_back(&call->drafts->step);
  }
  const std::optional<policy::DraftPlan::Ask> ask = policy::WindowAsk(plan_options_, steps);
  if (!ask.has_value()) return nullptr;
  return drafters_[static_cast<size_t>(ask->source)]->GrowMeanwhile(TasksOf(*ask, drafted));
}

void Speculator::AskFeatures(Call& call, std::span<engine::Row> rows,
                             std::vector<float>* features) {
  features->clear();
  if (!head_.has_value() || !Drafts(call) ||
      !policy::Allows(call.request.speculation, DraftSourceKind::kHead)) {
    return;
  }
  head_->AskFeatures(rows, features);
}

std::span<const int32_t> Speculator::feature_layers() const {
  return head_.has_value() ? head_->feature_layers() : std::span<const int32_t>();
}

void Speculator::TakeFeatures(Call& call, std::span<const engine::Row> rows,
                              std::span<const float> features) {
  if (features.empty()) return;
  head_->TakeFeatures(*call.session, DraftsOf(call), rows, features);
}

void Speculator::Observe(Call& call, const policy::DecodedStep& step) {
  SpeculationStats& stats = call.session->draft().stats();
  ++stats.target_passes;
  CallDrafts* const drafts = call.drafts.get();
  const policy::VerifiedDrafts told = learning_.OnStep(
      drafts == nullptr ? nullptr : &drafts->step, step,
      PaceOf(call).TokenMs(call.session->rows().computed()),
      call.session->tokens().subspan(drafts == nullptr ? 0 : drafts->tokens_before));
  stats.plain_ms += told.plain_ms;
  stats.took_ms += told.took_ms;
  bool verified = false;
  for (size_t i = 0; i < policy::kDraftSourceKinds; ++i) {
    const auto source = static_cast<DraftSourceKind>(i);
    stats.drafted[i] += told.drafted[i];
    stats.accepted[i] += told.accepted[i];
    metrics_.TokensVerified(source, told.drafted[i], told.accepted[i]);
    verified = verified || told.drafted[i] > 0;
  }
  if (verified) stats.verify_ns += step.ended_ns - step.started_ns;
}

void Speculator::Remember(Call& call) {
  if (call.drafts == nullptr || call.unanswered) return;
  AppDrafts& app = *call.drafts->app;
  const std::span<const int32_t> tokens = call.session->tokens();
  size_t first = 0;
  if (call.drafts->context->remembered) {
    // What came before is there already; a match may reach back into it.
    const auto known = static_cast<size_t>(call.session->usage().context_tokens);
    first =
        std::min(tokens.size(), known - std::min<size_t>(known, policy::TokenLookup::kMaxMatch));
  }
  app.lookup.Append(tokens.subspan(first), OwnerOf(call.request.context_id));
  app.lookup.EndText();
  call.drafts->context->remembered = !call.request.context_id.empty();
}

void Speculator::Forget(const Call& call) {
  if (call.drafts == nullptr) return;
  for (Drafter* drafter : drafters_) {
    if (drafter != nullptr) drafter->Forget(call.request.call_id);
  }
}

void Speculator::ForgetContext(const std::string& app_id, const std::string& context_id) {
  const auto app = apps_.find(app_id);
  if (app == apps_.end()) return;
  if (context_id.empty()) {
    apps_.erase(app);
    return;
  }
  app->second->lookup.Forget(OwnerOf(context_id));
  app->second->contexts.erase(context_id);
}

}  // namespace withy::serving
