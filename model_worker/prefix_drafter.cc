#include "model_worker/prefix_drafter.h"

#include <algorithm>
#include <memory>
#include <span>

#include "base/status.h"
#include "engine/sampling/draft_sampler.h"
#include "model_worker/prefix_group.h"
#include "policy/constants.h"

namespace withy::model_worker {

bool PrefixDrafter::CanDraftFor(int32_t level) const {
  const std::vector<engine::LevelInfo>& levels = model_.info().levels;
  return levels.size() > 1 && level > 0 && levels.front().percent <= kMaxPercent;
}

absl::Status PrefixDrafter::Grow(Session& session, const policy::GrowthLimits& limits,
                                 const policy::ConfidenceFn& confidence,
                                 const std::atomic<bool>* interrupt, const policy::LevelPace& pace,
                                 policy::DraftTree* tree) {
  WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                         engine::DraftSampler::Create(session.sampling()));
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  policy::TreeGrowth growth(limits, policy::DraftSourceKind::kPrefix, confidence, tree);
  for (std::vector<int32_t> leaves = growth.Next(); !leaves.empty(); leaves = growth.Next()) {
    const int64_t started = clock_.SteadyNanos();
    WITHY_ASSIGN_OR_RETURN(const bool computed, Compute(session, *tree, leaves, interrupt));
    if (!computed) return absl::OkStatus();
    const double ms = Millis(clock_.SteadyNanos() - started);
    const double expected = pace.TokenMs(session.computed());
    if (expected > 0) {
      pace_ += policy::kRowCostWeight * (std::clamp(ms / expected, pace_ / 2, pace_ * 2) - pace_);
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      WITHY_ASSIGN_OR_RETURN(const std::vector<engine::DraftCandidate> likely,
                             sampler.Candidates(std::span(logits_).subspan(i * vocab, vocab),
                                                session.tokens(), tree->PathTo(leaves[i])));
      std::vector<policy::Candidate> candidates;
      for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
      const int32_t before = tree->size();
      growth.Extend(leaves[i], candidates);
      StopAtEnds(session.sampling().unpenalized, before, tree);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> PrefixDrafter::Compute(Session& session, const policy::DraftTree& tree,
                                            const std::vector<int32_t>& nodes,
                                            const std::atomic<bool>* interrupt) {
  std::vector<engine::Row> rows;
  std::vector<std::vector<int32_t>> ancestors(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int32_t index = nodes[i];
    if (index == policy::TreeGrowth::kRoot) {
      rows.push_back(session.DraftRow({.token = session.tokens().back()}));
      continue;
    }
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    for (int32_t at = node.parent; at >= 0; at = tree.nodes()[static_cast<size_t>(at)].parent) {
      ancestors[i].push_back(session.DraftSlot(at));
    }
    std::reverse(ancestors[i].begin(), ancestors[i].end());
    rows.push_back(session.DraftRow(
        {.token = node.token, .depth = node.depth, .node = index, .ancestor_slots = ancestors[i]}));
  }
  const engine::ContextView view = session.DraftView();
  logits_.resize(
      std::max(logits_.size(), rows.size() * static_cast<size_t>(model_.info().vocab_size)));
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Pass> pass,
                         model_.Begin({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
  return pass->Run(interrupt);
}

}  // namespace withy::model_worker
