#include "model_worker/speculator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/session/solo_answer.h"
#include "policy/constants.h"

namespace withy::model_worker {
namespace {

using policy::DraftSourceKind;

// A branch ends where it is as unlikely as this.
constexpr double kLeastConfidence = 0.02;
constexpr int32_t kMostModelNodes = 64;

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
      costs_(options.row_costs),
      prefix_(model, clock) {}

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
  call.drafts = std::make_unique<CallDrafts>(tokens + request.answer.max_tokens, app, context);
  return *call.drafts;
}

Speculator::Room Speculator::RoomOf(const Call& call) const {
  const DraftRoom room = call.session->draft_room();
  const int32_t most = std::min(options_.max_tree_rows - 1, policy::TokenTree::kMaxDraftedTokens);
  return {.depth = std::min(room.depth, kMostDepth), .nodes = std::min(room.slots, most)};
}

const policy::LevelPace& Speculator::PaceOf(const Call& call) const {
  const int32_t level = engine::LevelIndex(model_.info(), call.session->level_percent());
  return level < 0 ? levels_.back() : levels_[static_cast<size_t>(level)];
}

void Speculator::Prepare(Call& call, const BesideCall& beside) {
  if (!options_.enabled || call.request.rebuild ||
      call.request.speculation == policy::SpeculationMode::kOff) {
    return;
  }
  CallDrafts& drafts = DraftsOf(call);
  const std::span<const int32_t> tokens = call.session->tokens();
  drafts.own.Append(tokens.subspan(drafts.fed));
  drafts.fed = drafts.tokens_before = tokens.size();
  drafts.tree = {};
  drafts.chosen.clear();
  drafts.draft_ms = 0;
  drafts.model.reset();
  drafts.other_rows = beside.other_rows;
  drafts.plain_ms = costs_.PlainMs(PaceOf(call).TokenMs(call.session->computed())) *
                    costs_.Ratio(beside.other_rows + 1);
  const Room room = RoomOf(call);
  AddLookups(call, room);
  // Now and then a pass of this call alone tells what those with drafts are compared with.
  const bool tells = beside.other_rows == 0 && costs_.since_plain() >= policy::kPassesBetweenPlain;
  if (!tells || options_.always) {
    Choose(call, room);
    if (drafts.chosen.empty() || options_.always) AskModels(call, room, beside);
  }
  call.session->set_draft_ahead(drafts.tree.empty() ? 0 : kMostDepth / 2);
  // A draft that is refused costs speed alone: the step decodes plainly.
  if (!call.session->Draft(policy::ToDrafted(drafts.tree, drafts.chosen)).ok()) {
    drafts.chosen.clear();
  }
}

// What followed the last tokens in this call, and in earlier ones of the app.
void Speculator::AddLookups(Call& call, const Room& room) {
  if (!policy::Allows(call.request.speculation, DraftSourceKind::kLookup)) return;
  CallDrafts& drafts = *call.drafts;
  const std::span<const int32_t> tokens = call.session->tokens();
  // The first token is looked at even where there is no room: it tells how sure lookups are.
  const int32_t depth = std::max(1, std::min(room.depth, room.nodes));
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

// Lets the draft model that gained most of late say what it expects, if one is to be asked.
void Speculator::AskModels(Call& call, const Room& room, const BesideCall& beside) {
  if (room.depth < 1 || room.nodes < 1 || !(beside.quiet || options_.always)) return;
  std::vector<DraftSourceKind> sources;
  for (const DraftSourceKind source : {DraftSourceKind::kPrefix, DraftSourceKind::kDraft}) {
    if (CanAsk(call, source)) sources.push_back(source);
  }
  if (sources.empty()) return;
  const policy::CallSpeculation known = call.drafts->speculation();
  std::stable_sort(sources.begin(), sources.end(), [&](DraftSourceKind a, DraftSourceKind b) {
    return known.GainOf(a).gain() > known.GainOf(b).gain();
  });
  if (!options_.always) sources.resize(1);
  for (const DraftSourceKind source : sources) Grow(call, source, room, beside.interrupt);
  Choose(call, room);
}

// Whether a model may draft for the call now: it is there, it pays or is to be tried again, and
// what it may lose can be afforded.
bool Speculator::CanAsk(const Call& call, DraftSourceKind source) const {
  if (!policy::Allows(call.request.speculation, source)) return false;
  const bool is_there =
      source == DraftSourceKind::kDraft
          ? options_.draft != nullptr && options_.draft->ready()
          : prefix_.CanDraftFor(engine::LevelIndex(model_.info(), call.session->level_percent()));
  if (!is_there || options_.always) return is_there;
  const CallDrafts& drafts = *call.drafts;
  const double try_ms = DraftPassMs(call, source) + drafts.plain_ms * costs_.Ratio(2);
  return drafts.speculation().GainOf(source).Asked() &&
         drafts.speculation().Affords(try_ms, drafts.plain_ms);
}

double Speculator::DraftPassMs(const Call& call, DraftSourceKind source) const {
  return source == DraftSourceKind::kDraft
             ? options_.draft->pass_ms()
             : prefix_.PassMs(levels_.front(), call.session->computed());
}

void Speculator::Grow(Call& call, DraftSourceKind source, const Room& room,
                      const std::atomic<bool>* interrupt) {
  CallDrafts& drafts = *call.drafts;
  policy::GrowthLimits limits{.max_nodes = std::min(room.nodes, kMostModelNodes),
                              .max_depth = room.depth};
  if (!options_.always) {
    limits.alpha = drafts.context->state.fallback.alpha();
    limits.pass_ms = DraftPassMs(call, source);
    limits.token_ms = drafts.plain_ms;
  }
  const policy::ConfidenceFn confidence = [&drafts](policy::DraftOrigin origin, double /*p*/) {
    return drafts.speculation().Confidence(origin);
  };
  const int64_t started = clock_.SteadyNanos();
  policy::DraftTree grown;
  if (source == DraftSourceKind::kDraft) {
    options_.draft->Draft({.call_id = call.request.call_id,
                           .tokens = call.session->tokens(),
                           .sampling = call.session->sampling(),
                           .limits = limits},
                          confidence, &grown);
  } else {
    // Without a draft the step decodes plainly, and says what is wrong with the model.
    prefix_.Grow(*call.session, limits, confidence, interrupt, levels_.front(), &grown)
        .IgnoreError();
  }
  const int64_t ended = clock_.SteadyNanos();
  metrics_.Drafted(call.request.call_id, grown.size(), started, ended);
  call.session->speculation().draft_ns += ended - started;
  drafts.draft_ms += Millis(ended - started);
  drafts.model = source;
  drafts.tree.Merge(grown);
}

void Speculator::Choose(Call& call, const Room& room) {
  CallDrafts& drafts = *call.drafts;
  drafts.chosen.clear();
  if (room.depth < 1 || room.nodes < 1) return;
  std::vector<int32_t> order = drafts.tree.ByConfidence();
  const std::vector<policy::DraftNode>& nodes = drafts.tree.nodes();
  std::erase_if(order, [&](int32_t i) { return nodes[static_cast<size_t>(i)].depth > room.depth; });
  if (order.size() > static_cast<size_t>(room.nodes)) order.resize(static_cast<size_t>(room.nodes));
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

void Speculator::Observe(Call& call, const DecodedStep& step) {
  SpeculationStats& stats = call.session->speculation();
  ++stats.target_passes;
  if (step.alone) {
    costs_.Observe(step.rows, step.ms, PaceOf(call).TokenMs(call.session->computed()));
  }
  if (call.drafts == nullptr || !(call.drafts->plain_ms > 0)) return;
  CallDrafts& drafts = *call.drafts;
  const size_t verified = std::min(static_cast<size_t>(step.rows) - 1, drafts.chosen.size());
  const int32_t accepted = FollowAnswer(call, verified);
  const double tokens = accepted + 1;
  double ms = drafts.plain_ms;
  // A pass behind a draft model's finds cold caches: what it takes counts, verified or not.
  if (drafts.model.has_value() && step.alone) ms = step.ms;
  if (verified > 0) {
    const auto rows = static_cast<int32_t>(verified) + drafts.other_rows + 1;
    ms = step.alone ? step.ms
                    : drafts.plain_ms * costs_.Ratio(rows) / costs_.Ratio(drafts.other_rows + 1);
    stats.verify_ns += step.ended_ns - step.started_ns;
  }
  ms += drafts.draft_ms;
  drafts.speculation().OnPass(tokens, ms, drafts.plain_ms);
  stats.plain_ms += tokens * drafts.plain_ms;
  stats.took_ms += ms;
  for (const DraftSourceKind source : {DraftSourceKind::kPrefix, DraftSourceKind::kDraft}) {
    drafts.speculation().OnSource(source, drafts.model == source, tokens, ms, drafts.plain_ms);
  }
  if (drafts.model.has_value()) OnModelVerified(drafts, verified, accepted);
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
void Speculator::OnModelVerified(CallDrafts& drafts, size_t verified, int32_t accepted) {
  const std::vector<policy::DraftNode>& nodes = drafts.tree.nodes();
  const policy::DraftNode* end = nullptr;
  for (size_t i = 0; i < verified; ++i) {
    const policy::DraftNode& node = nodes[static_cast<size_t>(drafts.chosen[i])];
    if (end == nullptr || node.depth > end->depth) end = &node;
  }
  if (end == nullptr) return;
  drafts.context->state.fallback.OnVerified(std::min(accepted, end->depth), end->depth,
                                            end->cumulative);
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
  app.lookup.Append(tokens.subspan(first));
  app.lookup.EndText();
  call.drafts->context->remembered = !call.request.context_id.empty();
}

void Speculator::Forget(const Call& call) {
  if (options_.draft != nullptr && call.drafts != nullptr) {
    options_.draft->Forget(call.request.call_id);
  }
}

}  // namespace withy::model_worker
