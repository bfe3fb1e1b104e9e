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

constexpr int32_t kMostNodes = 64;
constexpr int32_t kPieceRows = 128;

double LogProbability(std::span<const float> logits, int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - top));
  return static_cast<double>(logits[static_cast<size_t>(token)] - top) - std::log(sum);
}

double AsItSays(policy::DraftOrigin /*origin*/, double probability) { return probability; }

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
                                                         std::span<const int32_t> nodes) {
  const auto length = static_cast<int32_t>(tokens.size());
  std::vector<engine::Row> rows;
  std::deque<std::vector<int32_t>> ancestors;
  for (const int32_t index : nodes) {
    engine::Row& row = rows.emplace_back();
    row.token = tokens.back();
    row.position = row.slot = length - 1;
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
  computed_ = std::max(computed_, length);
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

absl::StatusOr<DecodedAnswer> PairDecoder::Decode(std::span<const int32_t> prompt, int32_t count,
                                                  const DecodeWay& way) {
  const auto most = static_cast<int32_t>(prompt.size()) + count + kMostNodes;
  target_sequence_ = std::make_unique<Sequence>(target_, most);
  draft_sequence_ = std::make_unique<Sequence>(draft_, most);
  threshold_ = {};
  answer_ = {};
  prompt_tokens_ = prompt.size();
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  WITHY_RETURN_IF_ERROR(target_sequence_->CatchUp(tokens));
  if (way.chain > 0 || way.tree || way.fallback > 0) {
    WITHY_RETURN_IF_ERROR(draft_sequence_->CatchUp(tokens));
  }
  const int64_t started = Clock::Real().SteadyNanos();
  const size_t end = tokens.size() + static_cast<size_t>(count);
  WITHY_RETURN_IF_ERROR(way.fallback > 0 ? DecodeBigLittle(std::move(tokens), end, way)
                                         : DecodeLossless(std::move(tokens), end, way));
  answer_.ms = Millis(Clock::Real().SteadyNanos() - started);
  return answer_;
}

absl::StatusOr<policy::DraftTree> PairDecoder::Draft(std::span<const int32_t> tokens, int32_t most,
                                                     const DecodeWay& way) {
  policy::DraftTree tree;
  policy::GrowthLimits limits{.max_nodes = std::min(most, kMostNodes),
                              .max_depth = std::min(most, kMostNodes),
                              .alpha = way.adaptive ? threshold_.alpha() : 0.01};
  if (way.chain > 0) {
    limits.max_nodes = limits.max_depth = std::min(most, way.chain);
    limits.alpha = 0;
    limits.branch_threshold = 2;
  }
  WITHY_RETURN_IF_ERROR(draft_sequence_->CatchUp(tokens));
  const auto vocab = static_cast<size_t>(draft_.info().vocab_size);
  policy::TreeGrowth growth(limits, policy::DraftSourceKind::kDraft, AsItSays, &tree);
  for (std::vector<int32_t> leaves = growth.Next(); !leaves.empty(); leaves = growth.Next()) {
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           draft_sequence_->Compute(tokens, tree, leaves));
    ++answer_.draft_passes;
    const int32_t before = tree.size();
    for (size_t i = 0; i < leaves.size(); ++i) {
      growth.Extend(leaves[i], Likely(logits.subspan(i * vocab, vocab)));
    }
    for (int32_t node = before; node < tree.size(); ++node) {
      if (ends_(tree.nodes()[static_cast<size_t>(node)].token)) tree.MarkExtended(node);
    }
  }
  // What it has computed beyond the tokens is of a tree.
  draft_sequence_->Forget(static_cast<int32_t>(tokens.size()));
  return tree;
}

absl::Status PairDecoder::DecodeLossless(std::vector<int32_t> tokens, size_t end,
                                         const DecodeWay& way) {
  const auto vocab = static_cast<size_t>(target_.info().vocab_size);
  for (bool over = false; !over;) {
    const size_t before = tokens.size();
    policy::DraftTree tree;
    if (way.chain > 0 || way.tree) {
      WITHY_ASSIGN_OR_RETURN(tree, Draft(tokens, static_cast<int32_t>(end - before), way));
    }
    std::vector<int32_t> nodes(static_cast<size_t>(tree.size()) + 1);
    std::iota(nodes.begin(), nodes.end(), -1);
    WITHY_RETURN_IF_ERROR(target_sequence_->CatchUp(tokens));
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           target_sequence_->Compute(tokens, tree, nodes));
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
    std::vector<int32_t> all(nodes.begin() + 1, nodes.end());
    const policy::MatchedBranch branch =
        policy::MostMatchingBranch(tree, all, std::span(tokens).subspan(before));
    threshold_.OnVerified(branch.correct, branch.all, branch.confidence);
  }
  answer_.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt_tokens_), tokens.end());
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
  answer_.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt_tokens_), tokens.end());
  return absl::OkStatus();
}

}  // namespace withy::bench
