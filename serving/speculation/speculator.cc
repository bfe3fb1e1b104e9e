#include "serving/speculation/speculator.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "engine/session/solo_answer.h"
#include "policy/constants.h"

namespace withy::serving {
namespace {

using policy::DraftSourceKind;

constexpr auto kPrefix = static_cast<size_t>(DraftSourceKind::kPrefix);
constexpr auto kDraft = static_cast<size_t>(DraftSourceKind::kDraft);

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

// Of the call, as long as it has drafts.
policy::ConfidenceFn ConfidenceOf(const Call& call) {
  return [drafts = call.drafts.get()](policy::DraftOrigin origin, double /*p*/) {
    return drafts->step.speculation.Confidence(origin);
  };
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
      prefix_(model, options.row_costs, metrics.pass_numbers(), clock) {}

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
    call->session->set_draft_ahead(policy::SlotsAhead(step));
    // A draft that is refused costs speed alone: the step decodes plainly.
    if (!call->session->Draft(policy::ToDrafted(step.tree, step.chosen)).ok()) {
      step.chosen.clear();
    }
  }
}

CallDrafts* Speculator::Begin(Call& call, int32_t other_rows) {
  if (!options_.enabled || call.request.rebuild ||
      call.request.speculation == policy::SpeculationMode::kOff) {
    return nullptr;
  }
  CallDrafts& drafts = DraftsOf(call);
  Session& session = *call.session;
  drafts.own.Append(session.tokens().subspan(drafts.fed));
  drafts.fed = drafts.tokens_before = session.tokens().size();
  policy::DraftedCall& step = drafts.step;
  const bool worker_grew = step.windows == DraftSourceKind::kDraft;
  // What is left of the tree of the last step.
  if (step.windows != DraftSourceKind::kPrefix) drafts.prefix = {};
  drafts.prefix.Follow(drafts.prefix_kv);
  session.speculation().window_kept += drafts.prefix.grown();
  drafts.prefix.Settle();
  step.tree = {};
  step.tree.Merge(drafts.prefix.tree);
  step.mode = call.request.speculation;
  step.room = {.depth = session.draft_room().depth, .nodes = session.draft_room().slots};
  step.other_rows = other_rows;
  step.plain_ms = learning_.PlainMs(PaceOf(call).TokenMs(session.computed()), other_rows);
  step.plain_so_far_ms = session.speculation().plain_ms;
  step.offers = {};
  Offer(call, &step);
  step.offers[kPrefix].goes_on = !drafts.prefix.tree.empty();
  step.offers[kDraft].goes_on = worker_grew;
  return &drafts;
}

// What the models could draft for the call's step.
void Speculator::Offer(const Call& call, policy::DraftedCall* step) const {
  policy::DraftOffer& prefix = step->offers[kPrefix];
  prefix.ready =
      prefix_.CanDraftFor(engine::LevelIndex(model_.info(), call.session->level_percent()));
  prefix.grows_in_windows = prefix.ready && prefix_.can_draft_in_windows();
  prefix.pass_ms = prefix_.PassMs(levels_.front(), call.session->computed());
  prefix.rows = &prefix_.costs();
  if (options_.draft == nullptr) return;
  policy::DraftOffer& draft = step->offers[kDraft];
  draft.ready = options_.draft->ready();
  draft.grows_in_windows = options_.draft->grows_in_windows();
  draft.pass_ms = options_.draft->pass_ms();
  draft.catch_up_ms = options_.draft->CatchUpMs(
      call.request.call_id, call.session->tokens().size(),
      draft.pass_ms > 0 ? draft.pass_ms : policy::GuessedDraftPassMs(step->plain_ms));
}

// Of the calls, those that a source is asked for.
std::vector<Call*> Speculator::Asked(const policy::DraftPlan::Ask& ask,
                                     std::span<Call* const> calls) {
  std::vector<Call*> asked;
  for (Call* call : calls) {
    const auto found = std::find(ask.calls.begin(), ask.calls.end(), &call->drafts->step);
    if (found != ask.calls.end()) asked.push_back(call);
  }
  return asked;
}

// All of `calls` wait.
policy::DraftPlan::Drafted Speculator::Draft(const policy::DraftPlan::Ask& ask,
                                             std::span<Call* const> calls,
                                             const std::atomic<bool>* interrupt) {
  const std::vector<Call*> asked = Asked(ask, calls);
  if (ask.source == DraftSourceKind::kLookup) {
    for (size_t i = 0; i < asked.size(); ++i) {
      CallDrafts& drafts = *asked[i]->drafts;
      // What followed the last tokens in this call, and in earlier ones of the app.
      for (const policy::TokenLookup* lookup : {&drafts.own, &drafts.app->lookup}) {
        policy::AddMatches(*lookup, asked[i]->session->tokens(), ask.limits[i].max_depth,
                           &drafts.step);
      }
    }
    return {};
  }
  const int64_t started = clock_.SteadyNanos();
  std::vector<int32_t> before;
  for (const Call* call : asked) before.push_back(call->drafts->step.tree.size());
  const DraftResult result = ask.source == DraftSourceKind::kDraft
                                 ? DraftByWorker(ask, asked)
                                 : DraftByPrefix(ask, asked, interrupt);
  const int64_t ended = clock_.SteadyNanos();
  for (size_t i = 0; i < asked.size(); ++i) {
    Call& call = *asked[i];
    metrics_.Drafted(call.request.call_id, call.drafts->step.tree.size() - before[i], started,
                     ended);
    call.session->speculation().draft_ns += ended - started;
  }
  // A worker that has not even begun says nothing of how good its drafts are.
  return {.came = result.came, .ms = Millis(ended - started), .caught_up_ms = result.caught_up_ms};
}

TreeJob Speculator::PrefixJob(const Call& call, const policy::GrowthLimits& limits) {
  return {.call_id = call.request.call_id,
          .tree = call.drafts->prefix,
          .kv = call.drafts->prefix_kv,
          .sampling = call.session->sampling(),
          .limits = limits,
          .confidence = ConfidenceOf(call)};
}

DraftResult Speculator::DraftByPrefix(const policy::DraftPlan::Ask& ask,
                                      std::span<Call* const> asked,
                                      const std::atomic<bool>* interrupt) {
  std::vector<TreeJob> jobs;
  for (size_t i = 0; i < asked.size(); ++i) jobs.push_back(PrefixJob(*asked[i], ask.limits[i]));
  // Without a draft the step decodes plainly, and says what is wrong with the model.
  prefix_.Grow(std::move(jobs), levels_.front(), interrupt).IgnoreError();
  for (const Call* call : asked) call->drafts->step.tree.Merge(call->drafts->prefix.tree);
  return {.came = true};
}

DraftResult Speculator::DraftByWorker(const policy::DraftPlan::Ask& ask,
                                      std::span<Call* const> asked) {
  std::vector<DraftJob> jobs;
  for (size_t i = 0; i < asked.size(); ++i) {
    jobs.push_back({.request = {.call_id = asked[i]->request.call_id,
                                .tokens = asked[i]->session->tokens(),
                                .sampling = asked[i]->session->sampling(),
                                .limits = ask.limits[i],
                                .patience_ms = ask.patience_ms},
                    .confidence = ConfidenceOf(*asked[i]),
                    .tree = {}});
  }
  const DraftResult result = options_.draft->Draft(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    asked[i]->drafts->step.tree.Merge(jobs[i].tree);
    if (!result.came) continue;
    const WindowTokens& window = jobs[i].window;
    asked[i]->session->speculation().window_drafted += window.drafted;
    asked[i]->session->speculation().window_kept += window.kept;
    metrics_.DraftedInWindow(static_cast<uint64_t>(window.drafted));
  }
  return result;
}

void Speculator::Observe(Call& call, const policy::DecodedStep& step) {
  SpeculationStats& stats = call.session->speculation();
  ++stats.target_passes;
  CallDrafts* const drafts = call.drafts.get();
  const policy::VerifiedDrafts told = learning_.OnStep(
      drafts == nullptr ? nullptr : &drafts->step, step,
      PaceOf(call).TokenMs(call.session->computed()),
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
  if (call.drafts == nullptr) return;
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
  if (options_.draft != nullptr && call.drafts != nullptr) {
    options_.draft->Forget(call.request.call_id);
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
