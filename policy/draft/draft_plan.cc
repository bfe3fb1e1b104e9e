#include "policy/draft/draft_plan.h"

#include <algorithm>
#include <utility>

#include "policy/constants.h"
#include "policy/draft/draft_confidence.h"
#include "policy/draft/token_tree.h"

namespace withy::policy {
namespace {

constexpr DraftSourceKind kModels[] = {DraftSourceKind::kPrefix, DraftSourceKind::kDraft,
                                       DraftSourceKind::kHead};

// Where a pass waits for a disk, it computes rows meanwhile.
std::vector<RowCost> GuessedIfUnknown(std::span<const RowCost> measured, bool streams) {
  if (measured.size() > 1 || !streams) return {measured.begin(), measured.end()};
  return {{.rows = 1, .ms = 1}, {.rows = kStreamedRows, .ms = kStreamedRowsCost}};
}

const DraftOffer& OfferOf(const DraftedCall& call, DraftSourceKind source) {
  return call.offers[static_cast<size_t>(source)];
}

// What a pass takes by which the model drafts for these calls.
double DraftPassMs(std::span<DraftedCall* const> asked, DraftSourceKind source) {
  double pass_ms = 0;
  for (const DraftedCall* call : asked) {
    pass_ms = std::max(pass_ms, OfferOf(*call, source).pass_ms);
  }
  const RowCosts* const rows = OfferOf(*asked.front(), source).rows;
  return rows == nullptr ? pass_ms : pass_ms * rows->Ratio(static_cast<int32_t>(asked.size()));
}

// Whether computing the KV that the model lacks takes no more than a share of what the answer has
// taken so far, or of what one pass with the model's drafts gains where that is known.
bool CatchUpPays(const DraftedCall& call, DraftSourceKind source, double share) {
  const SourceGain& gain = call.speculation.GainOf(source);
  const double gained_ms = gain.known() ? std::max(0.0, gain.gain() - 1) * call.plain_ms : 0;
  return OfferOf(call, source).catch_up_ms <= share * (call.plain_so_far_ms + gained_ms);
}

// How many drafted tokens the answer's new tokens follow; teaches how sure drafts are.
int32_t FollowAnswer(DraftedCall& call, size_t verified, std::span<const int32_t> answer,
                     VerifiedDrafts* told) {
  const std::vector<DraftNode>& nodes = call.tree.nodes();
  std::vector<bool> was_verified(nodes.size(), false);
  for (size_t i = 0; i < verified; ++i) {
    const auto node = static_cast<size_t>(call.chosen[i]);
    was_verified[node] = true;
    ++told->drafted[static_cast<size_t>(nodes[node].origin.source)];
  }
  int32_t at = -1, accepted = 0;
  for (const int32_t token : answer) {
    int32_t next = -1;
    for (size_t i = static_cast<size_t>(at + 1); i < nodes.size(); ++i) {
      // The first token is compared even where it was not verified.
      if (nodes[i].parent != at || (at >= 0 && !was_verified[i])) continue;
      call.speculation.Observe(nodes[i].origin, nodes[i].token == token);
      if (nodes[i].token == token && was_verified[i]) next = static_cast<int32_t>(i);
    }
    if (next < 0) break;
    ++accepted;
    ++told->accepted[static_cast<size_t>(nodes[static_cast<size_t>(next)].origin.source)];
    at = next;
  }
  return accepted;
}

}  // namespace

DraftLearning::DraftLearning(std::span<const RowCost> measured, bool streams)
    : costs_(GuessedIfUnknown(measured, streams)) {}

VerifiedDrafts DraftLearning::OnStep(DraftedCall* call, const DecodedStep& step, double expected_ms,
                                     std::span<const int32_t> answer) {
  const bool caught_up = call != nullptr && call->windows.has_value() && call->window_catches_up;
  if (step.alone && !caught_up) costs_.Observe(step.rows, step.ms, expected_ms);
  VerifiedDrafts told;
  if (call == nullptr || !(call->plain_ms > 0)) return told;
  const size_t verified = std::min(static_cast<size_t>(step.rows) - 1, call->chosen.size());
  const double tokens = FollowAnswer(*call, verified, answer, &told) + 1;
  // Other calls' drafts make a shared pass longer for this call, too.
  double ms = call->plain_ms;
  if (!step.alone) ms *= costs_.Ratio(step.batch_rows) / costs_.Ratio(step.batch_calls);
  // A pass behind a draft model's finds cold caches: what it takes counts, verified or not.
  if (step.alone && (verified > 0 || call->model.has_value())) ms = step.ms;
  ms += call->draft_ms;
  call->speculation.OnPass(tokens, ms, call->plain_ms);
  if (step.alone) ObserveWindows(*call, tokens, step.ms);
  told.plain_ms = tokens * call->plain_ms;
  told.took_ms = ms;
  for (const DraftSourceKind source : kModels) {
    // What look-ups gave is no gain of a model that was asked beside them.
    if (call->model == source && told.drafted[static_cast<size_t>(DraftSourceKind::kLookup)] > 0) {
      continue;
    }
    // What the draft's KV of the prompt took is paid once, and says nothing of the passes to come.
    call->speculation.OnSource(source, call->model == source, tokens, ms - call->catch_up_ms,
                               call->plain_ms);
  }
  if (call->vain_model.has_value()) call->speculation.OnVainAsk(*call->vain_model);
  if (call->model.has_value()) {
    const MatchedBranch branch =
        MostMatchingBranch(call->tree, std::span(call->chosen).first(verified), answer);
    call->speculation.context.fallback.OnVerified(branch.correct, branch.all, branch.confidence);
  }
  call->plain_ms = 0;
  return told;
}

// A plain step that others are compared with is neither of the two ways, and what a window gives
// that the draft's KV of the prompt is computed in comes later.
void DraftLearning::ObserveWindows(const DraftedCall& call, double tokens, double step_ms) {
  if (!call.window_source.has_value() || call.window_catches_up) return;
  WindowTrial& trial = trials_[static_cast<size_t>(*call.window_source)];
  const bool open = call.windows.has_value();
  if (open == trial.open()) trial.OnStep(open, tokens, step_ms + call.draft_ms, call.plain_ms);
}

DraftPlan::DraftPlan(const DraftOptions& options, const DraftLearning& learning,
                     std::vector<DraftedCall*> calls, bool may_ask_models)
    : options_(options),
      learning_(learning),
      calls_(std::move(calls)),
      may_ask_models_(may_ask_models),
      tells_(calls_.front()->other_rows == 0 &&
             learning.costs().since_plain() >= kPassesBetweenPlain) {
  const int32_t most = std::min(options_.max_tree_rows - 1, TokenTree::kMaxDraftedTokens);
  for (DraftedCall* call : calls_) {
    call->bounds = {.depth = std::min(call->room.depth, kMostDraftDepth),
                    .nodes = std::min(call->room.nodes, most)};
    call->chosen.clear();
    call->expected_gain = 1;
    call->draft_ms = call->catch_up_ms = 0;
    call->model.reset();
    call->vain_model.reset();
  }
  AskLookups();
  if (next() == nullptr) OnLookedUp();
}

void DraftPlan::AskLookups() {
  for (DraftedCall* call : calls_) {
    if (!Allows(call->mode, DraftSourceKind::kLookup)) continue;
    ask_.calls.push_back(call);
    // The first token is looked at even where there is no room: it tells how sure lookups are.
    ask_.limits.push_back(
        {.max_nodes = call->bounds.nodes,
         .max_depth = std::max(1, std::min(call->bounds.depth, call->bounds.nodes))});
  }
}

void DraftPlan::OnDrafted(const Drafted& drafted) {
  const Ask asked = std::exchange(ask_, {});
  if (asked.source == DraftSourceKind::kLookup) return OnLookedUp();
  for (DraftedCall* call : calls_) {
    call->draft_ms += drafted.ms;
    call->catch_up_ms += drafted.caught_up_ms;
  }
  for (DraftedCall* call : asked.calls) {
    if (drafted.came) {
      call->model = asked.source;
    } else if (!(OfferOf(*call, asked.source).catch_up_ms > 0)) {
      call->vain_model = asked.source;
    }
    Choose(*call);
  }
  AskNextModel();
}

void DraftPlan::OnLookedUp() {
  for (DraftedCall* call : calls_) ChooseWindows(*call);
  if (tells_ && !options_.always) return;
  for (DraftedCall* call : calls_) Choose(*call);
  if (options_.always || may_ask_models_) {
    for (Model& model : ModelsToAsk()) models_.push_back(model);
  }
  AskNextModel();
}

void DraftPlan::AskNextModel() {
  while (!models_.empty() && ask_.calls.empty()) {
    const Model model = models_.front();
    models_.pop_front();
    ask_ = {
        .source = model.source, .calls = Askable(model.source), .patience_ms = model.patience_ms};
    if (ask_.calls.empty()) continue;
    const double pass_ms = DraftPassMs(ask_.calls, model.source);
    for (const DraftedCall* call : ask_.calls) {
      ask_.limits.push_back(LimitsOf(*call, model, pass_ms, ask_.calls.size()));
    }
  }
  if (ask_.calls.empty() && !options_.always) FitChosen();
}

DraftPlan::SourceRank DraftPlan::RankOf(const DraftedCall& call, DraftSourceKind source) {
  const SourceGain& gain = call.speculation.GainOf(source);
  return {gain.Due(), gain.gain(), -OfferOf(call, source).pass_ms};
}

// The models that may draft for some of the calls, the one with the highest rank first; under
// control that one alone. All calls of the step wait for it and pay for that, also those that it
// does not draft for.
std::vector<DraftPlan::Model> DraftPlan::ModelsToAsk() const {
  std::vector<Model> models;
  for (const DraftSourceKind source : kModels) {
    const std::vector<DraftedCall*> asked = Askable(source);
    Model model{.source = source};
    if (asked.empty() || (!options_.always && !Afford(asked, &model))) continue;
    for (const DraftedCall* call : asked) model.rank = std::max(model.rank, RankOf(*call, source));
    models.push_back(model);
  }
  std::stable_sort(models.begin(), models.end(),
                   [](const Model& a, const Model& b) { return a.rank > b.rank; });
  if (!options_.always && models.size() > 1) models.resize(1);
  return models;
}

// The calls that a model may draft for now: those without a look-up match or with one that promises
// less than the model has gained, and those whose tree grew in a window and may be worth going on
// with.
std::vector<DraftedCall*> DraftPlan::Askable(DraftSourceKind source) const {
  std::vector<DraftedCall*> asked;
  for (DraftedCall* call : calls_) {
    const SourceGain& gain = call->speculation.GainOf(source);
    const bool better = gain.known() && gain.gain() > call->expected_gain;
    const bool wanted =
        options_.always || call->chosen.empty() || better || OfferOf(*call, source).goes_on;
    const bool room = call->bounds.depth > 0 && call->bounds.nodes > 0;
    if (wanted && room && CanAsk(*call, source)) asked.push_back(call);
  }
  return asked;
}

// Whether the model is there, and pays or is to be tried again.
bool DraftPlan::CanAsk(const DraftedCall& call, DraftSourceKind source) const {
  const DraftOffer& offer = OfferOf(call, source);
  if (!offer.ready || !Allows(call.mode, source)) return false;
  if (options_.always) return true;
  return CatchUpPays(call, source, kCatchUpShare) && call.speculation.GainOf(source).Asked();
}

// Whether all calls of the step can afford that the model drafts in vain; sets for how long it may.
bool DraftPlan::Afford(std::span<DraftedCall* const> asked, Model* model) const {
  std::vector<PassTree> trees;
  for (const DraftedCall* call : calls_) {
    trees.push_back({.call = call->speculation,
                     .cumulative = {},
                     .plain_ms = call->plain_ms,
                     .nodes = static_cast<int32_t>(call->chosen.size())});
  }
  int32_t depth = 0;
  double catch_up_ms = 0;
  for (const DraftedCall* call : asked) {
    depth = std::max(depth, call->bounds.depth);
    catch_up_ms += OfferOf(*call, model->source).catch_up_ms;
  }
  const double pass_ms = DraftPassMs(asked, model->source);
  const auto affordable = [&](double before_ms) {
    return AffordablePasses(learning_.costs(), trees,
                            {.rows = calls_.front()->other_rows + 1,
                             .asked = static_cast<int32_t>(asked.size()),
                             .before_ms = before_ms,
                             .pass_ms = pass_ms},
                            depth);
  };
  model->passes = affordable(catch_up_ms);
  const double plain_ms = asked.front()->plain_so_far_ms;
  if (model->passes == 0 && catch_up_ms > 0 && catch_up_ms <= kSlicedCatchUpShare * plain_ms) {
    // As much of the KV as the time of a pass allows: the rest another time.
    catch_up_ms = 0;
    model->passes = std::min(1, affordable(0));
  }
  model->patience_ms = catch_up_ms + kDraftPatience * model->passes * pass_ms;
  return model->passes > 0;
}

GrowthLimits DraftPlan::LimitsOf(const DraftedCall& call, const Model& model, double pass_ms,
                                 size_t asked) const {
  GrowthLimits limits{.max_nodes = std::min(call.bounds.nodes, kMostModelNodes),
                      .max_depth = call.bounds.depth,
                      .max_passes = model.passes};
  // Rows are nearly free while weights are read: other tokens than the likeliest are verified, too.
  if (call.windows.has_value()) limits.branch_threshold = kWindowBranch;
  if (options_.always) return limits;
  limits.alpha = call.speculation.context.fallback.alpha();
  // The calls share a pass, and what it takes.
  limits.pass_ms = pass_ms / static_cast<double>(asked);
  // Of two tokens that are verified together the second one saves what tokens take by now.
  limits.token_ms = call.plain_ms / std::max(1.0, call.speculation.GainOf(model.source).gain());
  return limits;
}

// The model whose tree of this call may grow in windows; of two the one with the higher rank. What
// the draft model grows comes when it is asked, so it is not preferred where it may not be.
std::optional<DraftSourceKind> DraftPlan::WindowSource(const DraftedCall& call) const {
  if (!options_.windows) return std::nullopt;
  const auto offers = [&call](DraftSourceKind source) {
    return OfferOf(call, source).grows_in_windows && Allows(call.mode, source);
  };
  const bool by_prefix = offers(DraftSourceKind::kPrefix);
  const bool by_draft =
      offers(DraftSourceKind::kDraft) &&
      (options_.always || (call.speculation.GainOf(DraftSourceKind::kDraft).Asked() &&
                           CatchUpPays(call, DraftSourceKind::kDraft, kWindowCatchUpShare)));
  if (!by_prefix) return by_draft ? std::optional(DraftSourceKind::kDraft) : std::nullopt;
  const bool preferred =
      by_draft && (options_.always || may_ask_models_) &&
      RankOf(call, DraftSourceKind::kDraft) > RankOf(call, DraftSourceKind::kPrefix);
  return preferred ? DraftSourceKind::kDraft : DraftSourceKind::kPrefix;
}

void DraftPlan::ChooseWindows(DraftedCall& call) const {
  call.window_source = WindowSource(call);
  call.window_catches_up =
      call.window_source.has_value() && OfferOf(call, *call.window_source).catch_up_ms > 0;
  const bool open = call.window_source.has_value() &&
                    (options_.always || (!tells_ && learning_.windows_open(*call.window_source)));
  call.windows = open ? call.window_source : std::nullopt;
}

// The nodes that are worth their rows, within the bounds.
void DraftPlan::Choose(DraftedCall& call) const {
  std::vector<int32_t> order = call.tree.ByConfidence();
  const std::vector<DraftNode>& nodes = call.tree.nodes();
  std::erase_if(order,
                [&](int32_t i) { return nodes[static_cast<size_t>(i)].depth > call.bounds.depth; });
  if (order.size() > static_cast<size_t>(call.bounds.nodes)) {
    order.resize(static_cast<size_t>(call.bounds.nodes));
  }
  if (!options_.always) {
    std::vector<double> cumulative;
    for (const int32_t i : order) cumulative.push_back(nodes[static_cast<size_t>(i)].cumulative);
    const TreeBudget budget = PlanPass(learning_.costs(), cumulative, call.other_rows,
                                       call.plain_ms, call.draft_ms, call.speculation);
    order.resize(static_cast<size_t>(budget.nodes));
    call.expected_gain = budget.gain;
  }
  call.chosen = std::move(order);
}

// Cuts what was chosen for each of the calls to what all can afford together.
void DraftPlan::FitChosen() const {
  if (calls_.size() < 2) return;
  std::vector<std::vector<double>> cumulative(calls_.size());
  std::vector<PassTree> trees;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const DraftedCall& call = *calls_[i];
    for (const int32_t node : call.chosen) {
      cumulative[i].push_back(call.tree.nodes()[static_cast<size_t>(node)].cumulative);
    }
    trees.push_back({.call = call.speculation,
                     .cumulative = cumulative[i],
                     .plain_ms = call.plain_ms,
                     .draft_ms = call.draft_ms,
                     .nodes = static_cast<int32_t>(call.chosen.size())});
  }
  const int32_t undrafted = calls_.front()->other_rows + 1 - static_cast<int32_t>(calls_.size());
  FitTogether(learning_.costs(), undrafted, trees);
  for (size_t i = 0; i < calls_.size(); ++i) {
    calls_[i]->chosen.resize(static_cast<size_t>(trees[i].nodes));
  }
}

void AddMatches(const TokenLookup& lookup, std::span<const int32_t> tokens, int32_t depth,
                DraftedCall* call) {
  for (const TokenLookup::Match& match : lookup.Find(tokens, depth, kMostMatches)) {
    int32_t node = -1, length = match.length;
    for (const int32_t token : match.tokens) {
      const DraftOrigin origin{DraftSourceKind::kLookup, DraftConfidence::LookupBin(length++)};
      node = call->tree.Add(node, token, call->speculation.Confidence(origin), origin);
      if (call->tree.nodes()[static_cast<size_t>(node)].cumulative < kLeastDraftConfidence) break;
    }
  }
}

void PlanPromptWindow(const DraftOptions& options, const DraftLearning& learning,
                      DraftedCall* call) {
  constexpr DraftSourceKind kDraft = DraftSourceKind::kDraft;
  const bool pays =
      options.always || (call->speculation.GainOf(kDraft).Asked() && learning.windows_pay(kDraft));
  const bool open = options.windows && Allows(call->mode, kDraft) && pays &&
                    OfferOf(*call, kDraft).grows_in_windows;
  call->windows = open ? std::optional(kDraft) : std::nullopt;
}

std::optional<DraftPlan::Ask> WindowAsk(const DraftOptions& options,
                                        std::span<DraftedCall* const> calls) {
  std::optional<DraftPlan::Ask> most;
  for (const DraftSourceKind source : kModels) {
    DraftPlan::Ask ask{.source = source};
    for (DraftedCall* call : calls) {
      if (call->windows != source || call->room.depth < 1) continue;
      const auto verified = static_cast<int32_t>(call->chosen.size());
      ask.calls.push_back(call);
      ask.limits.push_back(
          {.max_nodes = std::clamp(2 * verified, kMostWindowNodes, TokenTree::kMaxDraftedTokens),
           .max_depth = std::min(call->room.depth, 2 * kMostDraftDepth),
           .leaves_per_pass = kWindowLeaves,
           .alpha = options.always ? 0 : kLeastDraftConfidence,
           .branch_threshold = kWindowBranch});
    }
    if (ask.calls.size() > (most.has_value() ? most->calls.size() : 0)) most = std::move(ask);
  }
  return most;
}

int32_t SlotsAhead(const DraftedCall& call) {
  if (call.windows == DraftSourceKind::kPrefix) return kWindowSlotsAhead;
  return call.tree.empty() ? 0 : kMostDraftDepth / 2;
}

}  // namespace withy::policy
