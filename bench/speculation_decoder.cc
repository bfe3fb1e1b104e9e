#include "bench/speculation_decoder.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "bench/held_out.h"
#include "engine/kv/block.h"
#include "policy/draft_confidence.h"

namespace withy::bench {
namespace {

constexpr int32_t kMostTokens = 64;  // of a tree that is not weighed
constexpr int32_t kMostNodes = 255;
constexpr int32_t kPieceRows = 256;

double LogProbability(std::span<const float> logits, int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - top));
  return static_cast<double>(logits[static_cast<size_t>(token)] - top) - std::log(sum);
}

double AsItSays(policy::DraftOrigin /*origin*/, double probability) { return probability; }

// The nodes `chosen` of a tree, every parent before its children.
policy::DraftTree Part(const policy::DraftTree& tree, std::span<const int32_t> chosen) {
  policy::DraftTree part;
  std::vector<int32_t> places(static_cast<size_t>(tree.size()), -1);
  for (const int32_t index : chosen) {
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    const int32_t parent = node.parent < 0 ? -1 : places[static_cast<size_t>(node.parent)];
    places[static_cast<size_t>(index)] = part.Add(parent, node.token, node.confidence, node.origin);
  }
  return part;
}

// The draft's likely tokens, the likeliest first.
std::vector<policy::Candidate> Likely(std::span<const float> logits) {
  constexpr size_t kCandidates = 4;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + kCandidates, order.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                    });
  std::vector<policy::Candidate> likely;
  for (size_t i = 0; i < kCandidates; ++i) {
    likely.push_back({order[i], std::exp(LogProbability(logits, order[i]))});
  }
  return likely;
}

}  // namespace

Sequence::Sequence(engine::Model& model, int32_t tokens)
    : model_(model), kv_(model.info(), tokens) {}

absl::Status Sequence::CatchUp(std::span<const int32_t> tokens) {
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  computed_ = std::min(computed_, end);
  while (computed_ < end) {
    const int32_t rows = std::min(kPieceRows, end - computed_);
    WITHY_RETURN_IF_ERROR(engine::Prefill(
        model_, kv_, tokens.subspan(static_cast<size_t>(computed_), static_cast<size_t>(rows)),
        computed_, nullptr));
    computed_ += rows;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Sequence::Compute(std::span<const int32_t> tokens,
                                                         const policy::DraftTree& tree,
                                                         std::span<const int32_t> nodes,
                                                         int32_t level) {
  const auto length = static_cast<int32_t>(tokens.size());
  std::vector<engine::Row> rows;
  std::deque<std::vector<int32_t>> ancestors;
  for (const int32_t index : nodes) {
    engine::Row& row = rows.emplace_back();
    row.token = tokens.back();
    row.position = row.slot = length - 1;
    row.level = level;
    row.want_logits = true;
    if (index < 0) continue;
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    std::vector<int32_t>& slots = ancestors.emplace_back();
    for (int32_t at = node.parent; at >= 0; at = tree.nodes()[static_cast<size_t>(at)].parent) {
      slots.push_back(length + at);
    }
    std::reverse(slots.begin(), slots.end());
    row.token = node.token;
    row.position = length - 1 + node.depth;
    row.slot = length + index;
    row.ancestor_slots = slots;
  }
  kv_.Extend(length + tree.size());
  logits_.resize(rows.size() * static_cast<size_t>(model_.info().vocab_size));
  const engine::ContextView view = kv_.View();
  WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
  if (level < 0) computed_ = std::max(computed_, length);
  return std::span<const float>(logits_);
}

void Sequence::Accept(int32_t length, int32_t node, int32_t position) {
  const int32_t from = length + node;
  const engine::KvInfo& kv = model_.info().kv;
  const engine::KvGeometry geometry{kv.layers, kv.kv_heads, kv.head_dim};
  const engine::ContextView view = kv_.View();
  const auto block = [&](int32_t slot, int32_t layer) {
    const int32_t index = slot / engine::kChunkTokens * kv.layers + layer;
    return view.memory.At(view.blocks[static_cast<size_t>(index)]);
  };
  for (int32_t layer = 0; from != position && layer < kv.layers; ++layer) {
    engine::CopyToken(geometry, block(from, layer), from % engine::kChunkTokens,
                      block(position, layer), position % engine::kChunkTokens);
  }
  computed_ = position + 1;
}

absl::StatusOr<std::span<const float>> Sequence::ComputeTokens(std::span<const int32_t> tokens,
                                                               int32_t first, bool all_logits) {
  std::vector<engine::Row> rows;
  const auto end = static_cast<int32_t>(tokens.size());
  for (int32_t at = first; at < end; ++at) {
    rows.push_back({.token = tokens[static_cast<size_t>(at)],
                    .position = at,
                    .slot = at,
                    .want_logits = all_logits || at + 1 == end});
  }
  kv_.Extend(end);
  logits_.resize(rows.size() * static_cast<size_t>(model_.info().vocab_size));
  const engine::ContextView view = kv_.View();
  WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
  computed_ = end;
  return std::span<const float>(logits_);
}

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
    WITHY_ASSIGN_OR_RETURN(const double ms, measure(target, count, -1));
    measured.push_back({count, ms});
  }
  costs_.target_ms = measured.empty() ? 0 : measured.front().ms;
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

absl::Status PairDecoder::Begin(std::span<const int32_t> prompt, int32_t count) {
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
  if (draft_sequence_ != nullptr) draft_sequence_->Forget(prompt - 1);
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
    limits.token_ms = costs_.target_ms;
  }
  return limits;
}

absl::StatusOr<policy::DraftTree> PairDecoder::Draft(std::span<const int32_t> tokens, int32_t most,
                                                     const DecodeWay& way) {
  policy::DraftTree tree;
  if (way.tree && way.lookup) AddLookups(tokens, most, &tree);
  if (way.tree && way.prefix) {
    WITHY_ASSIGN_OR_RETURN(const policy::DraftTree grown,
                           Grow(tokens, *target_sequence_, policy::DraftSourceKind::kPrefix, 0,
                                LimitsOf(most, way, costs_.prefix_ms), way.weighed));
    tree.Merge(grown);
  }
  if (way.uses_draft()) {
    WITHY_RETURN_IF_ERROR(draft_sequence_->CatchUp(tokens));
    WITHY_ASSIGN_OR_RETURN(const policy::DraftTree grown,
                           Grow(tokens, *draft_sequence_, policy::DraftSourceKind::kDraft, -1,
                                LimitsOf(most, way, costs_.draft_ms), way.weighed));
    // What it has computed beyond the tokens is of a tree.
    draft_sequence_->Forget(static_cast<int32_t>(tokens.size()));
    tree.Merge(grown);
  }
  return way.weighed ? Worthy(tree) : tree;
}

absl::StatusOr<policy::DraftTree> PairDecoder::Grow(std::span<const int32_t> tokens,
                                                    Sequence& sequence,
                                                    policy::DraftSourceKind source, int32_t level,
                                                    const policy::GrowthLimits& limits,
                                                    bool learnt) {
  policy::DraftTree tree;
  policy::ConfidenceFn confidence = AsItSays;
  if (learnt) {
    confidence = [this](policy::DraftOrigin origin, double /*probability*/) {
      return confidence_.Of(origin);
    };
  }
  const auto vocab = static_cast<size_t>(target_.info().vocab_size);
  policy::TreeGrowth growth(limits, source, std::move(confidence), &tree);
  for (std::vector<int32_t> leaves = growth.Next(); !leaves.empty(); leaves = growth.Next()) {
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           sequence.Compute(tokens, tree, leaves, level));
    ++answer_.draft_passes;
    const int32_t before = tree.size();
    for (size_t i = 0; i < leaves.size(); ++i) {
      growth.Extend(leaves[i], Likely(logits.subspan(i * vocab, vocab)));
    }
    for (int32_t node = before; node < tree.size(); ++node) {
      if (ends_(tree.nodes()[static_cast<size_t>(node)].token)) tree.MarkExtended(node);
    }
  }
  return tree;
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
      if (ends_(match.tokens[i])) break;
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
  return Part(tree, std::span(order).first(static_cast<size_t>(budget.nodes)));
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
    policy::DraftTree tree;
    if (way.chain > 0 || way.tree) {
      const int64_t started = Clock::Real().SteadyNanos();
      WITHY_ASSIGN_OR_RETURN(tree, Draft(tokens, static_cast<int32_t>(end - before), way));
      answer_.draft_ms += Millis(Clock::Real().SteadyNanos() - started);
    }
    std::vector<int32_t> nodes(static_cast<size_t>(tree.size()) + 1);
    std::iota(nodes.begin(), nodes.end(), -1);
    WITHY_RETURN_IF_ERROR(target_sequence_->CatchUp(tokens));
    const int64_t verify_started = Clock::Real().SteadyNanos();
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           target_sequence_->Compute(tokens, tree, nodes));
    costs_.rows.Observe(static_cast<int32_t>(nodes.size()),
                        Millis(Clock::Real().SteadyNanos() - verify_started), costs_.target_ms);
    ++answer_.target_passes;
    answer_.drafted += tree.size();
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
