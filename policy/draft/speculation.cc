#include "policy/draft/speculation.h"

#include <algorithm>
#include <vector>

#include "policy/constants.h"

namespace withy::policy {

bool Allows(SpeculationMode mode, DraftSourceKind source) {
  switch (mode) {
    case SpeculationMode::kAuto:
      return true;
    case SpeculationMode::kOff:
      return false;
    case SpeculationMode::kLookup:
      return source == DraftSourceKind::kLookup;
    case SpeculationMode::kPrefix:
      return source == DraftSourceKind::kPrefix;
    case SpeculationMode::kDraft:
      return source == DraftSourceKind::kDraft;
    case SpeculationMode::kHead:
      return source == DraftSourceKind::kHead;
  }
  return false;
}

bool LossLimit::Affords(double pass_ms, double plain_ms) const {
  if (!(plain_ms > 0)) return false;
  return AffordsLoss(pass_ms / plain_ms - 1 - kMostLoss);
}

void LossLimit::OnPass(double tokens, double ms, double plain_ms) {
  if (!(plain_ms > 0)) return;
  const double credit = credit_tokens_.value_or(first_tokens_);
  credit_tokens_ = std::min(kMostCreditTokens, credit + tokens * (1 + kMostLoss) - ms / plain_ms);
}

void SourceGain::OnDrafted(double tokens, double ms, double plain_ms) {
  if (!known()) {
    plain_ms_ = kFirstPasses * kFirstGain * plain_ms;
    ms_ = kFirstPasses * plain_ms;
  }
  plain_ms_ = plain_ms_ * kGainMemory + tokens * plain_ms;
  ms_ = ms_ * kGainMemory + ms;
  const bool was_tried_again = pause_left_ <= 0 && pause_ > 0;
  if (gain() >= kPays) {
    pause_ = 0;
  } else if (pause_ == 0 || was_tried_again) {
    pause_ = std::clamp(2 * pause_, kFirstPauseTokens, kLongestPauseTokens);
  }
  pause_left_ = pause_;
  since_asked_ = 0;
}

bool SourceGain::Due() const {
  return (!known() || gain() >= kPays) && since_asked_ >= kTrialTokens;
}

TreeBudget PlanPass(const RowCosts& costs, std::span<const double> cumulative, int32_t other_rows,
                    double plain_ms, double draft_ms, const CallSpeculation& call) {
  std::span<const double> affordable = cumulative;
  while (true) {
    const TreeBudget budget = ChooseBudget(costs, affordable, other_rows);
    if (budget.nodes == 0) return budget;
    const double wider = costs.Ratio(other_rows + 1 + budget.nodes) / costs.Ratio(other_rows + 1);
    if (call.Affords(wider * plain_ms + draft_ms, plain_ms)) return budget;
    affordable = affordable.first(static_cast<size_t>(budget.nodes) - 1);
  }
}

bool AllAfford(std::span<const PassTree> trees, double wider) {
  const auto loss = [wider](const PassTree& tree) {
    return wider + tree.draft_ms / tree.plain_ms - 1 - kMostLoss;
  };
  return std::all_of(trees.begin(), trees.end(), [&](const PassTree& tree) {
    if (!(tree.plain_ms > 0)) return false;
    double of_app = 0;
    for (const PassTree& other : trees) {
      if (&other.call.app == &tree.call.app) of_app += std::max(0.0, loss(other));
    }
    return tree.call.context.limit.AffordsLoss(loss(tree)) &&
           tree.call.app.limit.AffordsLoss(of_app);
  });
}

int32_t AffordablePasses(const RowCosts& costs, std::span<const PassTree> trees,
                         const DraftedStep& step, int32_t most) {
  std::vector<PassTree> tried(trees.begin(), trees.end());
  int32_t verified = step.rows;
  for (const PassTree& tree : trees) verified += tree.nodes;
  for (int32_t passes = 1; passes <= most; ++passes) {
    for (PassTree& tree : tried) tree.draft_ms = step.before_ms + passes * step.pass_ms;
    if (!AllAfford(tried, costs.Ratio(verified + passes * step.asked) / costs.Ratio(step.rows))) {
      return passes - 1;
    }
  }
  return most;
}

void FitTogether(const RowCosts& costs, int32_t other_rows, std::span<PassTree> trees) {
  const int32_t calls = other_rows + static_cast<int32_t>(trees.size());
  while (true) {
    int32_t rows = calls;
    PassTree* least = nullptr;
    const auto last = [](const PassTree& tree) {
      return tree.cumulative[static_cast<size_t>(tree.nodes) - 1];
    };
    for (PassTree& tree : trees) {
      rows += tree.nodes;
      if (tree.nodes > 0 && (least == nullptr || last(tree) < last(*least))) least = &tree;
    }
    if (least == nullptr) return;
    const double wider = costs.Ratio(rows) / costs.Ratio(calls);
    if (AllAfford(trees, wider)) return;
    --least->nodes;
  }
}

}  // namespace withy::policy
