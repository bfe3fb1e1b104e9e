#include "bench/slo_policy.h"

#include <algorithm>

#include "engine/encoder/tlm.h"

namespace withy::bench {
namespace {

using orchestrator::Candidate;
using orchestrator::DecisionInput;
using orchestrator::Prediction;
using orchestrator::SloTargets;

bool Within(const Prediction& predicted, const SloTargets& targets) {
  v1::Latency latency;
  latency.set_ttft_ms(predicted.ttft_ms);
  latency.set_tpot_ms(predicted.tpot_ms);
  latency.set_end_to_end_ms(predicted.end_to_end_ms);
  return orchestrator::Meets(targets, latency, predicted.answer_tokens);
}

// One call's way to its pair of levels; follows orchestrator/prepare.cc.
class Chooser {
 public:
  Chooser(const Policy& policy, const BoardFacts& board, const PromptFacts& prompt,
          const SloCall& call, const orchestrator::Load& load,
          const orchestrator::LiveCorrection& live, const orchestrator::Agreement& agreement,
          size_t last_variant)
      : policy_(policy),
        board_(board),
        prompt_(prompt),
        call_(call),
        load_(load),
        live_(live),
        agreement_(agreement),
        last_variant_(last_variant),
        row_(policy.answers->rows[call.prompt]),
        levels_(policy.answers->prompt_levels.size()),
        variants_(policy.family->variants.size()) {
    for (const Variant& variant : policy.family->variants) {
      costs_.push_back(CalibratedCost(variant.times));
    }
    input_.slo = call.slo;
    input_.full_idle = PredictedFull(board, prompt, call, live);
    input_.reliability = live.ReliabilityOf(std::to_string(call.app));
    choice_.targets = orchestrator::ResolveSlo(call.slo, input_.full_idle);
    choice_.judged = orchestrator::Tolerate(call.slo, choice_.targets);
  }

  SloChoice Run(corpus::Rng* rng) {
    if (policy_.rule == Rule::kFull) return Take(levels_ - 1, variants_ - 1, 0);
    first_variant_ = 0;
    end_variant_ = variants_;
    if (policy_.rule == Rule::kModelByTpot) KeepLargestByTpot();
    input_.candidates = Candidates(levels_ - 1, 0);
    LeaveExamplesOut();
    const double read_ms = ShouldRead() ? ReadMs() : 0;
    if (read_ms > 0) {
      input_.candidates = Candidates(0, read_ms);
      input_.tlm = policy_.logits != nullptr;
    }
    if (policy_.rule == Rule::kRandom || policy_.rule == Rule::kOracle) {
      if (const Candidate* other = Pick(rng)) return TakeCandidate(*other, read_ms);
    }
    // Never an error: nothing is fixed, nothing is strict.
    const v1::Decision decision = orchestrator::Decide(input_).value();
    Candidate chosen;
    chosen.prompt_percent = decision.prompt_level_percent();
    chosen.level_percent = decision.model_level_percent();
    return TakeCandidate(chosen, read_ms);
  }

 private:
  double SwitchMs(size_t variant) const {
    return variant == last_variant_ ? 0 : policy_.family->variants[variant].switch_ms;
  }

  orchestrator::CallShape ShapeOf(size_t level, size_t variant, double read_ms) const {
    orchestrator::CallShape shape;
    shape.prefill_tokens = static_cast<uint32_t>(row_.tokens[level]);
    shape.max_tokens = call_.max_tokens;
    shape.level = costs_[variant];
    shape.tlm_ms = read_ms + SwitchMs(variant);
    shape.level_percent = policy_.family->variants[variant].percent;
    shape.answer_tokens = live_.AnswerTokensOf(std::to_string(call_.app));
    return shape;
  }

  const LevelLogits& Logits() const { return (*policy_.logits)[call_.slo_index][call_.prompt]; }

  // A prompt without its examples is taken for the next larger prompt level, where hardly more of
  // it stays.
  void LeaveExamplesOut() {
    const bool known = !policy_.pair_accuracy[prompt_.mostly_examples()].empty();
    if (!policy_.leaves_examples_out || !known || prompt_.share_without_examples == 100) return;
    const auto& levels = policy_.answers->prompt_levels;
    const auto level = static_cast<size_t>(
        std::lower_bound(levels.begin(), levels.end(), prompt_.share_without_examples) -
        levels.begin());
    std::vector<Candidate> without = Candidates(level, 0, level + 1);
    if (prompt_.mostly_examples()) {  // half of it surely holds all that is left
      const auto half = static_cast<size_t>(
          std::lower_bound(levels.begin(), levels.end(), engine::kMostlyExamples) - levels.begin());
      const std::vector<Candidate> worth = Candidates(half, 0, half + 1);
      for (size_t i = 0; i < without.size(); ++i) without[i].expected = worth[i].expected;
    }
    input_.candidates.insert(input_.candidates.begin(), without.begin(), without.end());
  }

  // Pairs from prompt level `first` to before `end`, in the order that orchestrator::Decide wants.
  std::vector<Candidate> Candidates(size_t first, double read_ms, size_t end = SIZE_MAX) const {
    std::vector<Candidate> candidates;
    for (size_t level = first; level < std::min(end, levels_); ++level) {
      for (size_t variant = first_variant_; variant < end_variant_; ++variant) {
        const orchestrator::CallShape shape = ShapeOf(level, variant, read_ms);
        Candidate& candidate = candidates.emplace_back();
        candidate.prompt_percent = policy_.answers->prompt_levels[level];
        candidate.level_percent = policy_.family->variants[variant].percent;
        candidate.predicted = orchestrator::Predict(board_.cost, live_, shape, load_);
        candidate.prefill_tokens = shape.prefill_tokens;
        const std::vector<float>& known = policy_.pair_accuracy[prompt_.mostly_examples()];
        const auto expect = [&](const auto& chance_at) {
          return agreement_.Expect(candidate.level_percent, chance_at(variant),
                                   chance_at(variants_ - 1));
        };
        if (!known.empty()) {
          candidate.expected = expect([&](size_t v) { return known[level * variants_ + v]; });
        }
        if (policy_.logits != nullptr && read_ms > 0) {
          candidate.probability = expect([&](size_t v) {
            return engine::PairChance(Logits().prompt[level], Logits().model[v]);
          });
        }
      }
    }
    return candidates;
  }

  // Leaves the largest variant that makes the TPOT alone, else the smallest.
  void KeepLargestByTpot() {
    size_t largest = 0;
    for (size_t variant = 0; variant < variants_; ++variant) {
      const Prediction predicted =
          orchestrator::Predict(board_.cost, live_, ShapeOf(levels_ - 1, variant, 0), load_);
      if (predicted.tpot_ms <= choice_.targets.tpot_ms) largest = variant;
    }
    first_variant_ = largest;
    end_variant_ = largest + 1;
  }

  double ReadMs() const { return orchestrator::TlmMs(live_, prompt_.text_bytes); }

  // As the orchestrator: not where the full model is in time, nor where reading cannot pay. Chance
  // draws from all pairs, and the oracle does not stop at an answer that it knows to be wrong.
  bool ShouldRead() const {
    if (!policy_.shortens || levels_ < 2) return false;
    const bool content =
        policy_.rule == Rule::kOracle ? bool{row_.right.back()} : policy_.rule != Rule::kRandom;
    if (content && orchestrator::FullMeets(input_)) return false;
    return orchestrator::PaysToRead(choice_.judged, input_.reliability, Candidates(0, ReadMs()),
                                    input_.candidates);
  }

  // Of the pairs that are predicted to meet the SLO, a random one or a right one; null: none.
  const Candidate* Pick(corpus::Rng* rng) const {
    std::vector<const Candidate*> meeting;
    for (const Candidate& candidate : input_.candidates) {
      if (Within(candidate.predicted, choice_.targets)) meeting.push_back(&candidate);
    }
    if (policy_.rule == Rule::kRandom) {
      if (meeting.empty()) return nullptr;
      return meeting[rng->Below(static_cast<uint32_t>(meeting.size()))];
    }
    const Candidate* best = nullptr;
    for (const Candidate* candidate : meeting) {
      if (!row_.right[LevelOf(*candidate) * variants_ + VariantOf(*candidate)]) continue;
      if (best == nullptr || candidate->predicted.end_to_end_ms < best->predicted.end_to_end_ms)
        best = candidate;
    }
    return best;
  }

  size_t LevelOf(const Candidate& candidate) const {
    const auto& levels = policy_.answers->prompt_levels;
    return static_cast<size_t>(std::find(levels.begin(), levels.end(), candidate.prompt_percent) -
                               levels.begin());
  }
  size_t VariantOf(const Candidate& candidate) const {
    const auto& variants = policy_.family->variants;
    return static_cast<size_t>(
        std::find_if(variants.begin(), variants.end(),
                     [&](const Variant& v) { return v.percent == candidate.level_percent; }) -
        variants.begin());
  }

  SloChoice TakeCandidate(const Candidate& candidate, double read_ms) {
    return Take(LevelOf(candidate), VariantOf(candidate), read_ms);
  }

  SloChoice Take(size_t level, size_t variant, double read_ms) {
    choice_.prompt_level = level;
    choice_.variant = variant;
    choice_.tlm_ms = read_ms > 0 ? board_.tlm.Ms(prompt_.text_bytes) : 0;
    choice_.switch_ms = SwitchMs(variant);
    choice_.shape = ShapeOf(level, variant, read_ms);
    choice_.predicted = orchestrator::Predict(board_.cost, live_, choice_.shape, load_);
    return choice_;
  }

  const Policy& policy_;
  const BoardFacts& board_;
  const PromptFacts& prompt_;
  const SloCall& call_;
  const orchestrator::Load& load_;
  const orchestrator::LiveCorrection& live_;
  const orchestrator::Agreement& agreement_;
  const size_t last_variant_;
  const Answers::Row& row_;
  const size_t levels_;
  const size_t variants_;
  std::vector<orchestrator::CostParameters> costs_;  // by variant
  size_t first_variant_ = 0;                         // that may be chosen
  size_t end_variant_ = 0;
  DecisionInput input_;
  SloChoice choice_;
};

}  // namespace

bool Family::switches() const {
  return std::any_of(variants.begin(), variants.end(),
                     [](const Variant& variant) { return variant.switch_ms > 0; });
}

Prediction PredictedFull(const BoardFacts& board, const PromptFacts& prompt, const SloCall& call,
                         const orchestrator::LiveCorrection& live) {
  orchestrator::CallShape shape;
  shape.prefill_tokens = static_cast<uint32_t>(prompt.tokens);
  shape.max_tokens = call.max_tokens;
  shape.answer_tokens = live.AnswerTokensOf(std::to_string(call.app));
  return orchestrator::PredictFullIdle(board.cost, live, shape);
}

SloChoice Choose(const Policy& policy, const BoardFacts& board, const PromptFacts& prompt,
                 const SloCall& call, const orchestrator::Load& load,
                 const orchestrator::LiveCorrection& live, const orchestrator::Agreement& agreement,
                 size_t last_variant, corpus::Rng* rng) {
  return Chooser(policy, board, prompt, call, load, live, agreement, last_variant).Run(rng);
}

}  // namespace withy::bench
