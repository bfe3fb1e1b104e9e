#include "bench/speculation/speculation_decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "policy/draft/draft_confidence.h"

namespace withy::bench {
namespace {

constexpr int32_t kMostTokens = 64;  // of a tree that is not weighed
constexpr int32_t kMostNodes = 255;

double AsItSays(policy::DraftOrigin /*origin*/, double probability) { return probability; }

}  // namespace

absl::StatusOr<PassCosts> PairDecoder::Calibrate(std::span<const int32_t> rows) {
  constexpr int32_t kDepth = 64;
  std::vector<int32_t> context;
  for (int32_t i = 0; i < kDepth; ++i) context.push_back((i * 7919) % target_.info().vocab_size);
  const auto measure = [&](Sequence& sequence, int32_t count,
                           int32_t level) -> absl::StatusOr<double> {
    policy::DraftTree chain;
    std::vector<int32_t> nodes = {-1};
    while (static_cast<int32_t>(nodes.size()) < count) {
      nodes.push_back(chain.Add(nodes.back(), chain.size() % 100, 0.9, {}));
    }
    double least = 0;
    for (int round = 0; round < 2; ++round) {
      const int64_t started = Clock::Real().SteadyNanos();
      WITHY_RETURN_IF_ERROR(sequence.Compute(context, chain, nodes, level).status());
      const double ms = Millis(Clock::Real().SteadyNanos() - started);
      least = round == 0 ? ms : std::min(least, ms);
    }
    return least;
  };
  Sequence target(target_, kDepth + kMostNodes + 1);
  WITHY_RETURN_IF_ERROR(target.CatchUp(context));
  std::vector<policy::RowCost> measured;
  for (const int32_t count : rows) {
    const int64_t waited_ns = target_.weight_stats().wait_ns;
    WITHY_ASSIGN_OR_RETURN(const double ms, measure(target, count, -1));
    measured.push_back({count, ms});
    // Of both passes.
    if (count == 1) costs_.wait_ms = Millis(target_.weight_stats().wait_ns - waited_ns) / 2;
  }
  slack_ms_ = costs_.wait_ms;
  token_ms_ = costs_.target_ms = measured.empty() ? 0 : measured.front().ms;
  costs_.rows = policy::RowCosts(measured);
  if (target_.info().levels.size() > 1) {
    WITHY_ASSIGN_OR_RETURN(costs_.prefix_ms, measure(target, 1, 0));
  }
  if (draft_ != nullptr) {
    Sequence draft(*draft_, kDepth + 1);
    WITHY_RETURN_IF_ERROR(draft.CatchUp(context));
    WITHY_ASSIGN_OR_RETURN(costs_.draft_ms, measure(draft, 1, -1));
  }
  return costs_;
}

absl::Status PairDecoder::Begin(std::span<const int32_t> prompt, int32_t count, bool open) {
  sampling_.unpenalized = open ? std::vector<int32_t>() : ends_;
  prompt_.assign(prompt.begin(), prompt.end());
  count_ = count;
  const auto most = static_cast<int32_t>(prompt.size()) + count + kMostNodes;
  target_sequence_ = std::make_unique<Sequence>(target_, most);
  WITHY_RETURN_IF_ERROR(target_sequence_->CatchUp(prompt_));
  if (draft_ == nullptr) return absl::OkStatus();
  draft_sequence_ = std::make_unique<Sequence>(*draft_, most);
  return draft_sequence_->CatchUp(prompt_);
}

absl::StatusOr<DecodedAnswer> PairDecoder::Answer(const DecodeWay& way) {
  if (way.uses_draft() && draft_ == nullptr) {
    return absl::InvalidArgumentError("this way of decoding needs a draft model");
  }
  if (way.tree && way.prefix && target_.info().levels.size() < 2) {
    return absl::InvalidArgumentError(
        "the target has no lower level that could draft: choose an elastic model");
  }
  threshold_ = {};
  answer_ = {};
  const auto prompt = static_cast<int32_t>(prompt_.size());
  target_sequence_->Forget(prompt - 1);
  draft_tree_ = {};
  if (draft_sequence_ != nullptr) {
    draft_sequence_->Forget(prompt - 1);
    draft_kv_.emplace(draft_sequence_->kv());
    draft_kv_->SetTokens(0, prompt_);
    draft_kv_->set_computed(prompt - 1);
  }
  const int64_t started = Clock::Real().SteadyNanos();
  const size_t end = prompt_.size() + static_cast<size_t>(count_);
  WITHY_RETURN_IF_ERROR(way.fallback > 0 ? DecodeBigLittle(prompt_, end, way)
                                         : DecodeLossless(prompt_, end, way));
  answer_.ms = Millis(Clock::Real().SteadyNanos() - started);
  return answer_;
}

absl::StatusOr<DecodedAnswer> PairDecoder::Decode(std::span<const int32_t> prompt, int32_t count,
                                                  const DecodeWay& way) {
  WITHY_RETURN_IF_ERROR(Begin(prompt, count));
  return Answer(way);
}

policy::GrowthLimits PairDecoder::LimitsOf(int32_t most, const DecodeWay& way,
                                           double pass_ms) const {
  policy::GrowthLimits limits{.max_nodes = std::min(most, kMostTokens),
                              .max_depth = std::min(most, kMostTokens),
                              .leaves_per_pass = way.leaves_per_pass,
                              .alpha = way.adaptive ? threshold_.alpha() : 0.01,
                              .branch_threshold = way.branch_threshold};
  if (way.chain > 0) {
    limits.max_nodes = limits.max_depth = std::min(most, way.chain);
    limits.alpha = 0;
    limits.branch_threshold = 2;
  } else if (way.weighed) {
    limits.max_nodes = std::min(way.most_nodes, kMostNodes);
    limits.alpha = 0;
    limits.pass_ms = pass_ms;
    limits.token_ms = token_ms_;
  }
  return limits;
}

absl::StatusOr<policy::DraftTree> PairDecoder::Draft(std::span<const int32_t> tokens, int32_t most,
                                                     const DecodeWay& way) {
  policy::DraftTree tree;
  if (way.tree && way.lookup) AddLookups(tokens, most, &tree);
  if (way.tree && way.prefix) {
    serving::ScratchTreeKv kv(target_sequence_->kv(), /*level=*/0);
    kv.SetTokens(0, tokens);
    kv.set_computed(static_cast<int32_t>(tokens.size()) - 1);  // by the full model
    serving::KvTree prefix;
    WITHY_ASSIGN_OR_RETURN(const auto grower,
                           GrowerOf(way, policy::DraftSourceKind::kPrefix,
                                    LimitsOf(most, way, costs_.prefix_ms), prefix, kv));
    for (bool more = true; more;) {
      WITHY_ASSIGN_OR_RETURN(more, Step(*grower));
    }
    tree.Merge(prefix.tree);
  }
  if (way.uses_draft()) {
    if (!way.ahead) draft_tree_.Clear();
    draft_kv_->SetTokens(0, tokens);
    draft_tree_.Follow(*draft_kv_);
    WITHY_ASSIGN_OR_RETURN(const auto grower,
                           GrowerOf(way, policy::DraftSourceKind::kDraft,
                                    LimitsOf(most, way, costs_.draft_ms), draft_tree_, *draft_kv_));
    for (bool more = true; more;) {
      WITHY_ASSIGN_OR_RETURN(more, Step(*grower));
    }
    tree.Merge(draft_tree_.tree);
  }
  return way.weighed ? Worthy(tree) : tree;
}

policy::ConfidenceFn PairDecoder::ConfidenceOf(const DecodeWay& way) const {
  if (!way.weighed) return AsItSays;
  return
      [this](policy::DraftOrigin origin, double /*probability*/) { return confidence_.Of(origin); };
}

absl::StatusOr<std::unique_ptr<serving::TreeGrower>> PairDecoder::GrowerOf(
    const DecodeWay& way, policy::DraftSourceKind source, const policy::GrowthLimits& limits,
    serving::KvTree& tree, serving::TreeKv& kv) {
  const bool prefix = source == policy::DraftSourceKind::kPrefix;
  return serving::TreeGrower::Create({.model = prefix ? target_ : *draft_,
                                      .passes = passes_,
                                      .clock = Clock::Real(),
                                      .logits = prefix ? prefix_logits_ : draft_logits_,
                                      .source = source},
                                     {{.tree = tree,
                                       .kv = kv,
                                       .sampling = sampling_,
                                       .limits = limits,
                                       .confidence = ConfidenceOf(way)}});
}

absl::StatusOr<bool> PairDecoder::Step(serving::TreeGrower& grower) {
  WITHY_ASSIGN_OR_RETURN(const bool more, grower.Begin());
  if (!more) return false;
  WITHY_RETURN_IF_ERROR(grower.Compute(/*stop=*/nullptr).status());
  if (grower.extends()) ++answer_.draft_passes;
  return true;
}

absl::StatusOr<std::span<const float>> PairDecoder::Verify(std::span<const int32_t> tokens,
                                                           const policy::DraftTree& tree,
                                                           std::span<const int32_t> nodes,
                                                           int32_t most, const DecodeWay& way) {
  const engine::WeightStreamStats before = target_.weight_stats();
  const int64_t started = Clock::Real().SteadyNanos();
  double window_ms = 0;
  BetweenLayers between;
  std::unique_ptr<serving::TreeGrower> grower;
  if (way.ahead && way.uses_draft()) {
    // A pass in a window costs little, so that less must be expected of it.
    constexpr double kWindowCost = 0.1;
    const policy::GrowthLimits limits = LimitsOf(most, way, kWindowCost * costs_.draft_ms);
    WITHY_ASSIGN_OR_RETURN(
        grower, GrowerOf(way, policy::DraftSourceKind::kDraft, limits, draft_tree_, *draft_kv_));
    between = [this, &grower, &window_ms, more = true](double done) mutable -> absl::Status {
      while (more && window_ms + costs_.draft_ms <= slack_ms_ * done) {
        const int64_t draft_started = Clock::Real().SteadyNanos();
        WITHY_ASSIGN_OR_RETURN(more, Step(*grower));
        window_ms += Millis(Clock::Real().SteadyNanos() - draft_started);
      }
      return absl::OkStatus();
    };
  }
  WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         target_sequence_->Compute(tokens, tree, nodes, -1, between));
  if (grower != nullptr) WITHY_RETURN_IF_ERROR(grower->Finish());
  costs_.rows.Observe(static_cast<int32_t>(nodes.size()),
                      Millis(Clock::Real().SteadyNanos() - started), costs_.target_ms);
  // Where nothing was waited for, the windows were overdrawn: they shrink until something is.
  constexpr double kShrink = 0.9;
  slack_ms_ = kShrink * (window_ms + Millis(target_.weight_stats().wait_ns - before.wait_ns));
  answer_.window_ms += window_ms;
  ++answer_.target_passes;
  answer_.drafted += tree.size();
  return logits;
}

void PairDecoder::AddLookups(std::span<const int32_t> tokens, int32_t most,
                             policy::DraftTree* tree) {
  constexpr int32_t kMostMatches = 3;
  constexpr int32_t kMostDepth = 32;
  policy::TokenLookup lookup(static_cast<int32_t>(tokens.size()));
  lookup.Append(tokens);
  for (const policy::TokenLookup::Match& match :
       lookup.Find(tokens, std::min(most, kMostDepth), kMostMatches)) {
    int32_t at = -1;
    for (size_t i = 0; i < match.tokens.size(); ++i) {
      const policy::DraftOrigin origin{
          policy::DraftSourceKind::kLookup,
          policy::DraftConfidence::LookupBin(match.length + static_cast<int32_t>(i))};
      at = tree->Add(at, match.tokens[i], confidence_.Of(origin), origin);
      if (Ends(match.tokens[i])) break;
    }
  }
}

policy::DraftTree PairDecoder::Worthy(const policy::DraftTree& tree) const {
  std::vector<int32_t> order = tree.ByConfidence();
  if (order.size() > static_cast<size_t>(kMostNodes)) order.resize(kMostNodes);
  std::vector<double> cumulative;
  for (const int32_t node : order) {
    cumulative.push_back(tree.nodes()[static_cast<size_t>(node)].cumulative);
  }
  const policy::TreeBudget budget = policy::ChooseBudget(costs_.rows, cumulative, 0);
  policy::DraftTree worthy;
  worthy.AddPart(tree, std::span(order).first(static_cast<size_t>(budget.nodes)));
  return worthy;
}

void PairDecoder::Learn(const policy::DraftTree& tree, std::span<const int32_t> answer) {
  for (const policy::DraftNode& node : tree.nodes()) {
    const auto depth = static_cast<size_t>(node.depth);
    const std::vector<int32_t> before = tree.PathTo(node.parent);
    if (depth > answer.size() || !std::equal(before.begin(), before.end(), answer.begin())) {
      continue;
    }
    confidence_.Observe(node.origin, node.token == answer[depth - 1]);
  }
}

absl::Status PairDecoder::DecodeLossless(std::vector<int32_t> tokens, size_t end,
                                         const DecodeWay& way) {
  const auto vocab = static_cast<size_t>(target_.info().vocab_size);
  for (bool over = false; !over;) {
    const size_t before = tokens.size();
    const auto most = static_cast<int32_t>(end - before);
    const int64_t started = Clock::Real().SteadyNanos();
    policy::DraftTree tree;
    if (way.chain > 0 || way.tree) {
      WITHY_ASSIGN_OR_RETURN(tree, Draft(tokens, most, way));
      answer_.draft_ms += Millis(Clock::Real().SteadyNanos() - started);
    }
    std::vector<int32_t> nodes(static_cast<size_t>(tree.size()) + 1);
    std::iota(nodes.begin(), nodes.end(), -1);
    WITHY_RETURN_IF_ERROR(target_sequence_->CatchUp(tokens));
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           Verify(tokens, tree, nodes, most, way));
    for (int32_t at = -1;;) {
      const int32_t next = Best(logits.subspan(static_cast<size_t>(at + 1) * vocab, vocab));
      over = Append(&tokens, next, end);
      at = tree.Find(at, next);
      if (at < 0) break;
      ++answer_.accepted;
      if (over) break;
      target_sequence_->Accept(static_cast<int32_t>(before), at,
                               static_cast<int32_t>(tokens.size()) - 1);
    }
    constexpr double kTokenWeight = 0.2;
    token_ms_ += kTokenWeight * (Millis(Clock::Real().SteadyNanos() - started) /
                                     static_cast<double>(tokens.size() - before) -
                                 token_ms_);
    if (tree.empty()) continue;
    if (way.weighed) Learn(tree, std::span<const int32_t>(tokens).subspan(before));
    std::vector<int32_t> all(nodes.begin() + 1, nodes.end());
    const policy::MatchedBranch branch =
        policy::MostMatchingBranch(tree, all, std::span(tokens).subspan(before));
    threshold_.OnVerified(branch.correct, branch.all, branch.confidence);
  }
  answer_.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt_.size()), tokens.end());
  return absl::OkStatus();
}

absl::Status PairDecoder::DecodeBigLittle(std::vector<int32_t> tokens, size_t end,
                                          const DecodeWay& way) {
  const auto vocab = static_cast<size_t>(target_.info().vocab_size);
  size_t judged =
      tokens.size();  // tokens behind it are the draft's, and the target has not seen them
  for (bool over = false; !over;) {
    WITHY_RETURN_IF_ERROR(draft_sequence_->CatchUp(tokens));
    const int32_t root[] = {policy::TreeGrowth::kRoot};
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> own,
                           draft_sequence_->Compute(tokens, {}, root));
    ++answer_.draft_passes;
    const int32_t best = Best(own);
    if (std::exp(LogProbability(own, best)) >= way.fallback) {
      over = Append(&tokens, best, end);
      continue;
    }
    const int32_t first = target_sequence_->computed();
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           target_sequence_->ComputeTokens(tokens, first));
    ++answer_.target_passes;
    answer_.drafted += static_cast<int64_t>(tokens.size() - judged);
    const auto behind = [&](size_t position) {  // the target's view of what follows it
      return logits.subspan((position - static_cast<size_t>(first)) * vocab, vocab);
    };
    while (judged < tokens.size() &&
           -LogProbability(behind(judged - 1), tokens[judged]) <= way.rollback) {
      ++judged;
      ++answer_.accepted;
    }
    const int32_t next = Best(behind(judged - 1));
    tokens.resize(judged);
    draft_sequence_->Forget(static_cast<int32_t>(judged));
    target_sequence_->Forget(static_cast<int32_t>(judged));
    over = Append(&tokens, next, end);
    judged = tokens.size();
  }
  answer_.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt_.size()), tokens.end());
  return absl::OkStatus();
}

}  // namespace withy::bench
