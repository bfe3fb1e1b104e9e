#include "bench/slo/slo_policy.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/encoder/tlm.h"

namespace withy::bench {
namespace {

using policy::CallPlan;
using policy::Candidate;

// Drives one call's plan; bench's counterpart of orchestrator/call/prepare.cc.
class Chooser {
 public:
  Chooser(const Policy& policy, const BoardFacts& board, const PromptFacts& prompt,
          const SloCall& call, const SloDecisionFacts& facts, DecidingBoard& here, corpus::Rng* rng)
      : policy_(policy),
        board_(board),
        prompt_(prompt),
        call_(call),
        facts_(facts),
        here_(here),
        rng_(rng),
        row_(policy.answers->rows[call.prompt]),
        percents_(policy.answers->prompt_levels),
        variants_(policy.family->variants.size()) {}

  SloChoice Run() {
    policy::CallPlanInput input = Input();
    if (policy_.rule == Rule::kModelByTpot) KeepLargestByTpot(&input);
    if (policy_.rule == Rule::kFull) {
      input.levels = {input.levels.back()};
      input.fixed_prompt_percent = 100;
    }
    CallPlan plan(std::move(input));
    Drive(plan);
    SloChoice choice;
    choice.turn = plan.turn();
    // Never an error: nothing is fixed, nothing is strict, windows have no end.
    choice.plan = plan.Finish().value();
    choice.prompt_level = LevelOf(choice.plan.decision.prompt_level_percent);
    choice.variant = VariantOf(choice.plan.decision.model_level_percent);
    choice.tlm_ms = tlm_ms_;
    choice.switch_ms = SwitchMs(choice.variant);
    if (tlm_ms_ > 0) here_.Learn({.tlm_bytes = prompt_.text_bytes, .tlm_ms = tlm_ms_});
    return choice;
  }

 private:
  policy::CallPlanInput Input() {
    policy::CallPlanInput input;
    input.app = std::to_string(call_.app);
    input.slo = call_.slo;
    input.max_tokens = call_.max_tokens;
    input.turn = {.arrived_ns = facts_.arrived_ns, .id = facts_.id};
    input.whole = {.tokens = static_cast<uint32_t>(row_.tokens.back())};
    input.mostly_examples = prompt_.mostly_examples();
    input.cost = board_.cost;
    for (size_t i = 0; i < variants_; ++i) {
      const Variant& variant = policy_.family->variants[i];
      input.levels.push_back({variant.percent, CalibratedCost(variant.times), SwitchMs(i)});
    }
    input.live = facts_.live;
    input.agreement = facts_.agreement;
    if (!policy_.pair_accuracy[prompt_.mostly_examples()].empty()) {
      input.pair_accuracy = [this](bool mostly_examples, uint32_t prompt, uint32_t variant) {
        return policy_.pair_accuracy[mostly_examples][Pair(prompt, variant)];
      };
    }
    input.may_fall = policy_.drops_level;
    if (policy_.rule == Rule::kRandom || policy_.rule == Rule::kOracle) {
      input.decide = [this](const policy::DecisionInput& given) { return Pick(given); };
    }
    // Chance draws from all pairs, and the oracle does not stop at an answer that is wrong.
    input.shorten_always =
        policy_.rule == Rule::kRandom || (policy_.rule == Rule::kOracle && !row_.right.back());
    return input;
  }

  // Leaves the largest variant that makes the TPOT alone, else the smallest.
  void KeepLargestByTpot(policy::CallPlanInput* input) {
    CallPlan plan(*input);
    plan.OnLoad(here_.LoadBefore(plan.turn()));
    size_t largest = 0;
    for (size_t variant = 0; variant < variants_; ++variant) {
      if (plan.candidates()[variant].predicted.tpot_ms <= plan.targets().tpot_ms) largest = variant;
    }
    input->levels = {input->levels[largest]};
  }

  void Drive(CallPlan& plan) {
    while (true) {
      switch (plan.need()) {
        case CallPlan::Need::kLoad:
          plan.OnLoad(here_.LoadBefore(plan.turn()));
          break;
        case CallPlan::Need::kShortening:
          plan.OnShortening(Shortening());
          if (plan.tlm_too_slow()) here_.Learn({.tlm_too_slow = true});
          break;
        case CallPlan::Need::kReading:
          plan.OnReading(Read(plan));
          break;
        case CallPlan::Need::kCount:
          Count(plan);
          break;
        case CallPlan::Need::kNothing:
          return;
      }
    }
  }

  policy::ShorteningFacts Shortening() const {
    policy::ShorteningFacts facts;
    if (!policy_.shortens || percents_.size() < 2) {
      facts.why_not = "this contestant reads no prompts";
      return facts;
    }
    facts.prompt_levels = percents_;
    facts.text_bytes = prompt_.text_bytes;
    facts.least_percent = prompt_.least_percent;
    if (policy_.leaves_examples_out && prompt_.share_without_examples < 100) {
      facts.without_examples = ShortenTo(prompt_.share_without_examples);
      facts.without_examples_worth =
          std::max(prompt_.share_without_examples, engine::kMostlyExamples);
    }
    return facts;
  }

  // Bytes are not known: as many as tokens, in proportion.
  policy::ShortenedPrompt ShortenTo(uint32_t percent) const {
    const size_t level = LevelOf(percent);
    const auto kept = static_cast<size_t>(row_.tokens[level]) * prompt_.text_bytes;
    return {.percent = percent,
            .text_bytes = prompt_.text_bytes,
            .kept_bytes = kept / static_cast<size_t>(row_.tokens.back()),
            .whole = row_.tokens[level] == row_.tokens.back()};
  }

  policy::TlmReading Read(const CallPlan& plan) {
    tlm_ms_ = board_.tlm.Ms(prompt_.text_bytes);
    here_.Spend(tlm_ms_);
    policy::TlmReading reading{.ms = tlm_ms_};
    for (const uint32_t percent : plan.PercentsToTry(percents_, /*prunable=*/true)) {
      reading.prompts.push_back(ShortenTo(percent));
      if (policy_.logits == nullptr) continue;
      const LevelLogits& logits = (*policy_.logits)[call_.slo_index][call_.prompt];
      for (const float logit : logits.model) {
        reading.right.push_back(engine::PairChance(logits.prompt[LevelOf(percent)], logit));
      }
    }
    return reading;
  }

  void Count(CallPlan& plan) {
    const auto tokens = static_cast<uint32_t>(row_.tokens[LevelOf(plan.percent_to_count())]);
    here_.Learn({.estimated_tokens = plan.estimated_tokens(), .counted_tokens = tokens});
    plan.OnCounted({.tokens = tokens});
  }

  // Of the pairs that are predicted to meet the SLO, a random one or a right one; as the service
  // where there is none. What chance has drawn stays, while it is in time.
  absl::StatusOr<policy::Decision> Pick(const policy::DecisionInput& given) {
    const policy::CallTargets targets = policy::ResolveSlo(given.slo, given.full_idle);
    std::vector<const Candidate*> meeting;
    const Candidate* best = nullptr;
    for (const Candidate& candidate : given.candidates) {
      if (!policy::Meets(targets, candidate.predicted, candidate.predicted.answer_tokens)) continue;
      meeting.push_back(&candidate);
      const std::pair names(candidate.prompt_percent, candidate.level_percent);
      if (policy_.rule == Rule::kRandom && drawn_ == names) best = &candidate;
      if (policy_.rule != Rule::kOracle || !row_.right[Pair(names.first, names.second)]) continue;
      const double ms = candidate.predicted.end_to_end_ms;
      if (best == nullptr || ms < best->predicted.end_to_end_ms) best = &candidate;
    }
    if (policy_.rule == Rule::kRandom && best == nullptr && !meeting.empty()) {
      best = meeting[rng_->Below(static_cast<uint32_t>(meeting.size()))];
      drawn_ = std::pair(best->prompt_percent, best->level_percent);
    }
    if (best == nullptr) return policy::Decide(given);
    policy::Decision decision;
    decision.prompt_level_percent = best->prompt_percent;
    decision.model_level_percent = best->level_percent;
    return decision;
  }

  double SwitchMs(size_t variant) const {
    return variant == facts_.last_variant ? 0 : policy_.family->variants[variant].switch_ms;
  }
  // A share between two prompt levels counts as the next larger one, where hardly more stays.
  size_t LevelOf(uint32_t prompt_percent) const {
    return static_cast<size_t>(
        std::lower_bound(percents_.begin(), percents_.end(), prompt_percent) - percents_.begin());
  }
  size_t VariantOf(uint32_t level_percent) const {
    const auto& variants = policy_.family->variants;
    return static_cast<size_t>(
        std::find_if(variants.begin(), variants.end(),
                     [&](const Variant& v) { return v.percent == level_percent; }) -
        variants.begin());
  }
  size_t Pair(uint32_t prompt_percent, uint32_t level_percent) const {
    return LevelOf(prompt_percent) * variants_ + VariantOf(level_percent);
  }

  const Policy& policy_;
  const BoardFacts& board_;
  const PromptFacts& prompt_;
  const SloCall& call_;
  const SloDecisionFacts& facts_;
  DecidingBoard& here_;
  corpus::Rng* const rng_;
  const Answers::Row& row_;
  const std::vector<uint32_t>& percents_;  // of the prompt
  const size_t variants_;
  double tlm_ms_ = 0;
  std::optional<std::pair<uint32_t, uint32_t>> drawn_;  // by chance: prompt and model level
};

}  // namespace

bool Family::switches() const {
  return std::any_of(variants.begin(), variants.end(),
                     [](const Variant& variant) { return variant.switch_ms > 0; });
}

SloChoice Choose(const Policy& policy, const BoardFacts& board, const PromptFacts& prompt,
                 const SloCall& call, const SloDecisionFacts& facts, DecidingBoard& here,
                 corpus::Rng* rng) {
  return Chooser(policy, board, prompt, call, facts, here, rng).Run();
}

}  // namespace withy::bench
