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

// A branch ends where it is as unlikely as this.
constexpr double kLeastConfidence = 0.02;
constexpr int32_t kMostModelNodes = 64;
// Guessed time of one draft_worker pass, as a share of a plain pass; used until one was measured.
constexpr double kGuessedPassShare = 0.2;
// How long a step waits for draft_worker, as a ratio to what its passes are expected to take.
constexpr double kPatience = 1.5;
// draft_worker begins with a call's prompt when that takes at most this share of the time that the
// answer would have taken plainly so far. So a long prompt with a short answer is left alone: its
// draft would take longer than it can save.
constexpr double kCatchUpShare = 0.25;
// The same where it cannot be afforded at once. An answer that has already taken 20 times as long
// as the catch-up will probably outlast it.
constexpr double kSlicedCatchUpShare = 0.05;

// What passes of several rows take while it was not measured. Where a pass waits for a disk, it
// computes rows meanwhile.
std::vector<policy::RowCost> GuessedIfUnknown(const engine::Model& model,
                                              const std::vector<policy::RowCost>& measured) {
  if (measured.size() > 1 || !model.weight_stats().streams()) return measured;
  return {{.rows = 1, .ms = 1}, {.rows = 32, .ms = 1.3}};
}

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

}  // namespace

Speculator::Speculator(engine::Model& model, const SpeculationOptions& options,
                       const std::vector<policy::LevelPace>& levels, Clock& clock,
                       WorkerMetrics& metrics)
    : model_(model),
      options_(options),
      levels_(levels),
      clock_(clock),
      metrics_(metrics),
      costs_(GuessedIfUnknown(model, options.row_costs)),
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

TreeBounds Speculator::BoundsOf(const Call& call) const {
  const DraftRoom room = call.session->draft_room();
  const int32_t most = std::min(options_.max_tree_rows - 1, policy::TokenTree::kMaxDraftedTokens);
  return {.depth = std::min(room.depth, kMostDepth), .nodes = std::min(room.slots, most)};
}

const policy::LevelPace& Speculator::PaceOf(const Call& call) const {
  const int32_t level = engine::LevelIndex(model_.info(), call.session->level_percent());
  return level < 0 ? levels_.back() : levels_[static_cast<size_t>(level)];
}

void Speculator::Prepare(std::span<Call* const> calls, const BesideCalls& beside) {
  std::vector<Call*> drafted;
  const int32_t others = beside.other_rows + static_cast<int32_t>(calls.size()) - 1;
  for (Call* call : calls) {
    if (Begin(*call, others) != nullptr) drafted.push_back(call);
  }
  if (drafted.empty()) return;
  // Now and then a pass of one call alone tells what those with drafts are compared with.
  const bool tells = others == 0 && costs_.since_plain() >= policy::kPassesBetweenPlain;
  for (Call* call : drafted) ChooseWindows(*call, tells);
  if (!tells || options_.always) {
    for (Call* call : drafted) Choose(*call);
    // A call that is not drafted must not wait for a draft model.
    if (options_.always || (beside.quiet && drafted.size() == calls.size())) {
      AskModels(drafted, beside);
    }
    if (!options_.always) {
      FitChosen(drafted, others + 1 - static_cast<int32_t>(drafted.size()));
    }
  }
  for (Call* call : drafted) {
    CallDrafts& drafts = *call->drafts;
    call->session->set_draft_ahead(SlotsAhead(drafts));
    // A draft that is refused costs speed alone: the step decodes plainly.
    if (!call->session->Draft(policy::ToDrafted(drafts.tree, drafts.chosen)).ok()) {
      drafts.chosen.clear();
    }
  }
}

CallDrafts* Speculator::Begin(Call& call, int32_t other_rows) {
  if (!options_.enabled || call.request.rebuild ||
      call.request.speculation == policy::SpeculationMode::kOff) {
    return nullptr;
  }
  CallDrafts& drafts = DraftsOf(call);
  const std::span<const int32_t> tokens = call.session->tokens();
  drafts.own.Append(tokens.subspan(drafts.fed));
  drafts.fed = drafts.tokens_before = tokens.size();
  drafts.tree = {};
  drafts.chosen.clear();
  drafts.draft_ms = drafts.catch_up_ms = 0;
  drafts.model.reset();
  drafts.other_rows = other_rows;
  drafts.plain_ms =
      costs_.PlainMs(PaceOf(call).TokenMs(call.session->computed())) * costs_.Ratio(other_rows + 1);
  drafts.bounds = BoundsOf(call);
  BeginWithKept(call);
  AddLookups(call);
  return &drafts;
}

// What followed the last tokens in this call, and in earlier ones of the app.
void Speculator::AddLookups(Call& call) {
  if (!policy::Allows(call.request.speculation, DraftSourceKind::kLookup)) return;
  CallDrafts& drafts = *call.drafts;
  const std::span<const int32_t> tokens = call.session->tokens();
  // The first token is looked at even where there is no room: it tells how sure lookups are.
  const int32_t depth = std::max(1, std::min(drafts.bounds.depth, drafts.bounds.nodes));
  for (const policy::TokenLookup* lookup : {&drafts.own, &drafts.app->lookup}) {
    for (const auto& match : lookup->Find(tokens, depth, kMostMatches)) {
      int32_t node = -1, length = match.length;
      for (const int32_t token : match.tokens) {
        const policy::DraftOrigin origin{DraftSourceKind::kLookup,
                                         policy::DraftConfidence::LookupBin(length++)};
        node = drafts.tree.Add(node, token, drafts.speculation().Confidence(origin), origin);
        if (drafts.tree.nodes()[static_cast<size_t>(node)].cumulative < kLeastConfidence) break;
      }
    }
  }
}

// Asks the draft model with the highest recent gain about calls without a look-up match, if one
// may be asked. All calls of the step wait for it and pay for that, also those that it does not
// draft for.
void Speculator::AskModels(std::span<Call* const> calls, const BesideCalls& beside) {
  std::vector<Asked> sources;
  for (const DraftSourceKind source : {DraftSourceKind::kPrefix, DraftSourceKind::kDraft}) {
    Asked asked{.source = source, .calls = Askable(calls, source)};
    if (asked.calls.empty() || (!options_.always && !Afford(calls, &asked))) continue;
    for (const Call* call : asked.calls) {
      asked.gain += call->drafts->speculation().GainOf(source).gain();
    }
    sources.push_back(std::move(asked));
  }
  std::stable_sort(sources.begin(), sources.end(),
                   [](const Asked& a, const Asked& b) { return a.gain > b.gain; });
  if (!options_.always && sources.size() > 1) sources.resize(1);
  for (Asked& asked : sources) {
    asked.calls = Askable(calls, asked.source);
    Grow(calls, asked, beside.interrupt);
    for (Call* call : asked.calls) Choose(*call);
  }
}

// The calls that a model may draft for now.
std::vector<Call*> Speculator::Askable(std::span<Call* const> calls, DraftSourceKind source) const {
  std::vector<Call*> asked;
  for (Call* call : calls) {
    const CallDrafts& drafts = *call->drafts;
    // A tree that grew in a window may be worth going on with.
    const bool goes_on =
        source == DraftSourceKind::kPrefix ? !drafts.prefix.tree.empty() : drafts.worker_grew;
    const bool wanted = options_.always || drafts.chosen.empty() || goes_on;
    const bool room = drafts.bounds.depth > 0 && drafts.bounds.nodes > 0;
    if (wanted && room && CanAsk(*call, source)) asked.push_back(call);
  }
  return asked;
}

// Whether the model is there, and pays or is to be tried again.
bool Speculator::CanAsk(const Call& call, DraftSourceKind source) const {
  if (!policy::Allows(call.request.speculation, source)) return false;
  const bool is_there =
      source == DraftSourceKind::kDraft
          ? options_.draft != nullptr && options_.draft->ready()
          : prefix_.CanDraftFor(engine::LevelIndex(model_.info(), call.session->level_percent()));
  if (!is_there || options_.always) return is_there;
  if (source == DraftSourceKind::kDraft &&
      CatchUpMs(call) > kCatchUpShare * call.session->speculation().plain_ms) {
    return false;
  }
  return call.drafts->speculation().GainOf(source).Asked();
}

// Whether all calls of the step can afford that the model drafts in vain; sets for how long it may.
bool Speculator::Afford(std::span<Call* const> calls, Asked* asked) const {
  std::vector<policy::PassTree> trees;
  int32_t rows = 0, depth = 0;
  for (const Call* call : calls) {
    const CallDrafts& drafts = *call->drafts;
    rows = drafts.other_rows + 1;
    trees.push_back({.call = drafts.speculation(),
                     .cumulative = {},
                     .plain_ms = drafts.plain_ms,
                     .nodes = static_cast<int32_t>(drafts.chosen.size())});
  }
  double catch_up_ms = 0;
  for (const Call* call : asked->calls) {
    depth = std::max(depth, call->drafts->bounds.depth);
    if (asked->source == DraftSourceKind::kDraft) catch_up_ms += CatchUpMs(*call);
  }
  const double pass_ms = DraftPassMs(asked->calls, asked->source);
  const auto affordable = [&](double before_ms) {
    return policy::AffordablePasses(costs_, trees,
                                    {.rows = rows,
                                     .asked = static_cast<int32_t>(asked->calls.size()),
                                     .before_ms = before_ms,
                                     .pass_ms = pass_ms},
                                    depth);
  };
  asked->passes = affordable(catch_up_ms);
  const double plain_ms = asked->calls.front()->session->speculation().plain_ms;
  if (asked->passes == 0 && catch_up_ms > 0 && catch_up_ms <= kSlicedCatchUpShare * plain_ms) {
    // As much of the KV as the time of a pass allows: the rest another time.
    catch_up_ms = 0;
    asked->passes = std::min(1, affordable(0));
  }
  asked->patience_ms = catch_up_ms + kPatience * asked->passes * pass_ms;
  return asked->passes > 0;
}

// What draft_worker needs before its first pass for the call.
double Speculator::CatchUpMs(const Call& call) const {
  return options_.draft->CatchUpMs(call.request.call_id, call.session->tokens().size(),
                                   WorkerPassMs(call));
}

// A pass of draft_worker, guessed until one was measured.
double Speculator::WorkerPassMs(const Call& call) const {
  const double known = options_.draft->pass_ms();
  return known > 0 ? known : kGuessedPassShare * call.drafts->plain_ms;
}

// What a pass of the model takes that drafts for these calls.
double Speculator::DraftPassMs(std::span<Call* const> asked, DraftSourceKind source) const {
  if (source == DraftSourceKind::kDraft) return WorkerPassMs(*asked.front());
  int32_t depth = 0;
  for (const Call* call : asked) depth = std::max(depth, call->session->computed());
  return prefix_.PassMs(levels_.front(), depth, static_cast<int32_t>(asked.size()));
}

policy::GrowthLimits Speculator::LimitsOf(const Asked& asked, const Call& call) const {
  const CallDrafts& drafts = *call.drafts;
  policy::GrowthLimits limits{.max_nodes = std::min(drafts.bounds.nodes, kMostModelNodes),
                              .max_depth = drafts.bounds.depth,
                              .max_passes = asked.passes};
  // Rows are nearly free while weights are read: other tokens than the likeliest are verified, too.
  if (drafts.windows.has_value()) limits.branch_threshold = kWindowBranch;
  if (options_.always) return limits;
  limits.alpha = drafts.context->state.fallback.alpha();
  // The calls share a pass, and what it takes.
  limits.pass_ms = DraftPassMs(asked.calls, asked.source) / static_cast<double>(asked.calls.size());
  // Of two tokens that are verified together the second one saves what tokens take by now.
  limits.token_ms =
      drafts.plain_ms / std::max(1.0, drafts.speculation().GainOf(asked.source).gain());
  return limits;
}

policy::ConfidenceFn Speculator::ConfidenceOf(const Call& call) const {
  return [drafts = call.drafts.get()](policy::DraftOrigin origin, double /*p*/) {
    return drafts->speculation().Confidence(origin);
  };
}

// All of `calls` wait.
void Speculator::Grow(std::span<Call* const> calls, const Asked& asked,
                      const std::atomic<bool>* interrupt) {
  const int64_t started = clock_.SteadyNanos();
  std::vector<int32_t> before;
  for (const Call* call : asked.calls) before.push_back(call->drafts->tree.size());
  const bool of_worker = asked.source == DraftSourceKind::kDraft;
  DraftResult result{.came = true};
  if (of_worker) {
    result = AskDraft(asked);
  } else {
    GrowByPrefix(asked, interrupt);
  }
  const int64_t ended = clock_.SteadyNanos();
  for (size_t i = 0; i < asked.calls.size(); ++i) {
    Call& call = *asked.calls[i];
    metrics_.Drafted(call.request.call_id, call.drafts->tree.size() - before[i], started, ended);
    call.session->speculation().draft_ns += ended - started;
    // A worker that has not even begun says nothing of how good its drafts are.
    if (result.came) call.drafts->model = asked.source;
  }
  for (Call* call : calls) {
    call->drafts->draft_ms += Millis(ended - started);
    call->drafts->catch_up_ms += result.caught_up_ms;
  }
}

TreeJob Speculator::PrefixJob(const Call& call, const policy::GrowthLimits& limits) const {
  return {.call_id = call.request.call_id,
          .tree = call.drafts->prefix,
          .kv = call.drafts->prefix_kv,
          .sampling = call.session->sampling(),
          .limits = limits,
          .confidence = ConfidenceOf(call)};
}

void Speculator::GrowByPrefix(const Asked& asked, const std::atomic<bool>* interrupt) {
  std::vector<TreeJob> jobs;
  for (const Call* call : asked.calls) jobs.push_back(PrefixJob(*call, LimitsOf(asked, *call)));
  // Without a draft the step decodes plainly, and says what is wrong with the model.
  prefix_.Grow(std::move(jobs), levels_.front(), interrupt).IgnoreError();
  for (const Call* call : asked.calls) call->drafts->tree.Merge(call->drafts->prefix.tree);
}

DraftResult Speculator::AskDraft(const Asked& asked) {
  std::vector<DraftJob> jobs;
  for (const Call* call : asked.calls) {
    jobs.push_back({.request = {.call_id = call->request.call_id,
                                .tokens = call->session->tokens(),
                                .sampling = call->session->sampling(),
                                .limits = LimitsOf(asked, *call),
                                .patience_ms = asked.patience_ms},
                    .confidence = ConfidenceOf(*call),
                    .tree = {}});
  }
  const DraftResult result = options_.draft->Draft(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    asked.calls[i]->drafts->tree.Merge(jobs[i].tree);
    if (result.came) CountWindowTokens(*asked.calls[i], jobs[i].window);
  }
  return result;
}

void Speculator::Choose(Call& call) {
  CallDrafts& drafts = *call.drafts;
  const TreeBounds& bounds = drafts.bounds;
  drafts.chosen.clear();
  if (bounds.depth < 1 || bounds.nodes < 1) return;
  std::vector<int32_t> order = drafts.tree.ByConfidence();
  const std::vector<policy::DraftNode>& nodes = drafts.tree.nodes();
  std::erase_if(order,
                [&](int32_t i) { return nodes[static_cast<size_t>(i)].depth > bounds.depth; });
  if (order.size() > static_cast<size_t>(bounds.nodes)) {
    order.resize(static_cast<size_t>(bounds.nodes));
  }
  if (!options_.always) {
    std::vector<double> cumulative;
    for (const int32_t i : order) cumulative.push_back(nodes[static_cast<size_t>(i)].cumulative);
    const policy::TreeBudget budget =
        policy::PlanPass(costs_, cumulative, drafts.other_rows, drafts.plain_ms, drafts.draft_ms,
                         drafts.speculation());
    order.resize(static_cast<size_t>(budget.nodes));
  }
  drafts.chosen = std::move(order);
}

// Cuts what was chosen for each of the calls to what all can afford together.
void Speculator::FitChosen(std::span<Call* const> calls, int32_t other_rows) {
  if (calls.size() < 2) return;
  std::vector<std::vector<double>> cumulative(calls.size());
  std::vector<policy::PassTree> trees;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallDrafts& drafts = *calls[i]->drafts;
    for (const int32_t node : drafts.chosen) {
      cumulative[i].push_back(drafts.tree.nodes()[static_cast<size_t>(node)].cumulative);
    }
    trees.push_back({.call = drafts.speculation(),
                     .cumulative = cumulative[i],
                     .plain_ms = drafts.plain_ms,
                     .draft_ms = drafts.draft_ms,
                     .nodes = static_cast<int32_t>(drafts.chosen.size())});
  }
  policy::FitTogether(costs_, other_rows, trees);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i]->drafts->chosen.resize(static_cast<size_t>(trees[i].nodes));
  }
}

void Speculator::Observe(Call& call, const DecodedStep& step) {
  SpeculationStats& stats = call.session->speculation();
  ++stats.target_passes;
  const bool caught_up =
      call.drafts != nullptr && call.drafts->windows.has_value() && call.drafts->window_catches_up;
  if (step.alone && !caught_up) {
    costs_.Observe(step.rows, step.ms, PaceOf(call).TokenMs(call.session->computed()));
  }
  if (call.drafts == nullptr || !(call.drafts->plain_ms > 0)) return;
  CallDrafts& drafts = *call.drafts;
  const size_t verified = std::min(static_cast<size_t>(step.rows) - 1, drafts.chosen.size());
  const int32_t accepted = FollowAnswer(call, verified);
  const double tokens = accepted + 1;
  // Other calls' drafts make a shared pass longer for this call, too.
  double ms =
      step.alone ? drafts.plain_ms
                 : drafts.plain_ms * costs_.Ratio(step.batch_rows) / costs_.Ratio(step.batch_calls);
  // A pass behind a draft model's finds cold caches: what it takes counts, verified or not.
  if (drafts.model.has_value() && step.alone) ms = step.ms;
  if (verified > 0) {
    if (step.alone) ms = step.ms;
    stats.verify_ns += step.ended_ns - step.started_ns;
  }
  ms += drafts.draft_ms;
  drafts.speculation().OnPass(tokens, ms, drafts.plain_ms);
  if (step.alone) ObserveWindows(call, tokens, step.ms);
  stats.plain_ms += tokens * drafts.plain_ms;
  stats.took_ms += ms;
  for (const DraftSourceKind source : {DraftSourceKind::kPrefix, DraftSourceKind::kDraft}) {
    // What the draft's KV of the prompt took is paid once, and says nothing of the passes to come.
    drafts.speculation().OnSource(source, drafts.model == source, tokens, ms - drafts.catch_up_ms,
                                  drafts.plain_ms);
  }
  if (drafts.model.has_value()) OnModelVerified(call, verified);
  drafts.plain_ms = 0;
}

int32_t Speculator::FollowAnswer(Call& call, size_t verified) {
  CallDrafts& drafts = *call.drafts;
  SpeculationStats& stats = call.session->speculation();
  const std::vector<policy::DraftNode>& nodes = drafts.tree.nodes();
  std::vector<bool> was_verified(nodes.size(), false);
  for (size_t i = 0; i < verified; ++i) {
    const auto node = static_cast<size_t>(drafts.chosen[i]);
    was_verified[node] = true;
    ++stats.drafted[static_cast<size_t>(nodes[node].origin.source)];
    metrics_.TokenDrafted(nodes[node].origin.source);
  }
  int32_t at = -1, accepted = 0;
  for (const int32_t token : call.session->tokens().subspan(drafts.tokens_before)) {
    int32_t next = -1;
    for (size_t i = static_cast<size_t>(at + 1); i < nodes.size(); ++i) {
      // The first token is compared even where it was not verified.
      if (nodes[i].parent != at || (at >= 0 && !was_verified[i])) continue;
      drafts.speculation().Observe(nodes[i].origin, nodes[i].token == token);
      if (nodes[i].token == token && was_verified[i]) next = static_cast<int32_t>(i);
    }
    if (next < 0) break;
    ++accepted;
    const DraftSourceKind source = nodes[static_cast<size_t>(next)].origin.source;
    ++stats.accepted[static_cast<size_t>(source)];
    metrics_.TokenAccepted(source);
    at = next;
  }
  return accepted;
}

// Tells the fallback threshold of the branch that matched best.
void Speculator::OnModelVerified(const Call& call, size_t verified) {
  const CallDrafts& drafts = *call.drafts;
  const policy::MatchedBranch branch =
      policy::MostMatchingBranch(drafts.tree, std::span(drafts.chosen).first(verified),
                                 call.session->tokens().subspan(drafts.tokens_before));
  drafts.context->state.fallback.OnVerified(branch.correct, branch.all, branch.confidence);
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
