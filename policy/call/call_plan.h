// The composition of one call: from its SLO, its counted prompt and the load to the setting that
// runs, step by step. Says what it has to be told next; whoever drives it finds that out and tells
// it. No I/O, no clock. Neighbours: decide.h chooses among the candidates made here,
// latency_model.h predicts them; orchestrator/call/prepare.cc drives it in the service,
// bench/slo/slo_policy.cc on a simulated board. See docs/method-decisions.md, The order.
//
//   CallPlan plan(input);
//   while (plan.need() != CallPlan::Need::kNothing) {
//     switch (plan.need()) {
//       case CallPlan::Need::kLoad: plan.OnLoad(admission.LoadBefore(lane, plan.turn(), now)); ...
//     }
//   }
//   absl::StatusOr<PlannedCall> call = plan.Finish();
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "policy/board/latency_model.h"
#include "policy/call/agreement.h"
#include "policy/call/decide.h"
#include "policy/call/turn.h"

namespace withy::policy {

// A rendered prompt and the context before it, as far as the window has room for both. Tokens.
struct PromptCount {
  uint32_t tokens = 0;  // of the prompt
  uint32_t context_tokens = 0;
  uint32_t resident_tokens = 0;   // of the context: whose KV is there
  uint32_t dropped_messages = 0;  // oldest ones that the window has no room for
};

// A prompt of which only a share of the words stays, before it is rendered and counted.
struct ShortenedPrompt {
  uint32_t percent = 100;  // of the words, that was asked for
  size_t text_bytes = 0;
  size_t kept_bytes = 0;
  bool whole = true;  // no word is left out
};

// A level of the model that may run.
struct LevelOption {
  uint32_t percent = 100;
  CostParameters cost;
  double switch_ms = 0;  // to bring its weights in; levels of one elastic file need none
};

// How often a pair of levels is right over all prompts of a kind; 0 = not known. Prompts that are
// mostly worked examples are a kind of their own.
using PairAccuracyFn =
    std::function<double(bool mostly_examples, uint32_t prompt_percent, uint32_t level_percent)>;
// Chooses among candidates; policy::Decide in the service.
using DecideFn = std::function<absl::StatusOr<Decision>(const DecisionInput&)>;

struct CallPlanInput {
  // The call.
  std::string app = {};
  Slo slo = {};
  uint32_t fixed_level_percent = 0;            // of the model, by the caller; 0 = decide
  uint32_t fixed_prompt_percent = 0;           // of the prompt, by the caller; 0 = decide
  uint32_t most_level_percent = kFullPercent;  // of the model, where the caller fixes none
  std::string note = {};                       // sentences that go into the explanation
  uint32_t max_tokens = 0;                     // that the caller allows; 0 = not said
  // Whether the worker may draft tokens, and whether the caller asked for it.
  bool speculates = false;
  bool speculation_wanted = false;
  bool has_context = false;
  Turn turn = {};  // deadline_ns is filled in by the plan
  // Its prompt, whole.
  PromptCount whole = {};
  uint32_t adapted_messages = 0;  // of the context, merged or added for the chat template
  bool mostly_examples = false;
  // The model and the board.
  uint32_t window = 0;              // tokens; 0 = not known
  uint32_t default_max_tokens = 0;  // where the caller allows none; 0 = not known
  CostParameters cost = {};         // of the full model
  std::vector<LevelOption> levels;  // ascending, not empty; the last is the most that there is
  LiveCorrection live = {};
  Agreement agreement = {};           // of the app
  PairAccuracyFn pair_accuracy = {};  // null: not known
  bool may_fall = true;               // to a lower level in mid-answer
  // What a benchmark's contestants do otherwise than the service.
  DecideFn decide = &Decide;
  bool shorten_always = false;  // also looks at shorter prompts where the full model is in time
};

// What shortening the prompt could give, before the TLM reads it.
struct ShorteningFacts {
  std::string why_not = {};                  // the prompt cannot be read; empty = it can
  std::vector<uint32_t> prompt_levels = {};  // that the TLM chooses among, per cent, ascending
  size_t text_bytes = 0;                     // that it would read
  uint32_t least_percent = 0;                // of the words, that stay at any level
  // The prompt without its worked examples, for which nothing has to be read; percent 100: there
  // are none.
  ShortenedPrompt without_examples = {};
  uint32_t without_examples_worth = 100;  // prompt level of which it is known what that is worth
};

// What the TLM made of the prompt.
struct TlmReading {
  double ms = 0;  // that reading and shortening took
  // By PercentsToTry, in its order.
  std::vector<ShortenedPrompt> prompts = {};
  std::string why_whole = {};  // why no share of the prompt can be chosen; empty = one can
  // The chance that a pair answers right, [prompts][levels]; empty: it only ranked words.
  std::vector<double> right = {};
};

// What came out.
struct PlannedCall {
  Decision decision;
  CallShape shape;       // at the decided levels
  Prediction predicted;  // likewise
  CallDemand demand;     // as other calls see it, with its targets
  OtherCall work;        // likewise: what is to be computed
};

class CallPlan {
 public:
  enum class Need {
    kLoad,        // OnLoad
    kShortening,  // OnShortening
    kReading,     // OnReading or OnUnreadable
    kCount,       // OnCounted, of the prompt at percent_to_count()
    kNothing,     // Finish
  };

  explicit CallPlan(CallPlanInput input);

  Need need() const { return need_; }

  // The calls that run and wait before this one, at turn(). Asked for first, and again after a
  // reading, which takes time.
  void OnLoad(Load load);
  void OnShortening(const ShorteningFacts& facts);
  // Shares of the prompt to shorten it to, in per cent, ascending. `prompt_levels`: of the TLM.
  // `prunable`: some share can be chosen.
  std::vector<uint32_t> PercentsToTry(const std::vector<uint32_t>& prompt_levels,
                                      bool prunable) const;
  void OnReading(const TlmReading& reading);
  // `why` is not OK.
  void OnUnreadable(const absl::Status& why);
  uint32_t percent_to_count() const { return prompts_[to_count_].percent; }
  uint32_t estimated_tokens() const { return prompts_[to_count_].count.tokens; }
  void OnCounted(const PromptCount& count);

  // Once nothing is needed. Errors: as policy::Decide; UNIMPLEMENTED for a fixed prompt level that
  // cannot be had, naming why; OUT_OF_RANGE where prompt and system prompt fill the window; of
  // OnUnreadable.
  absl::StatusOr<PlannedCall> Finish() const;

  const Turn& turn() const { return turn_; }
  const CallTargets& targets() const { return targets_; }
  // What the measured latency is held against: `targets` with the tolerance of ratios.
  const CallTargets& judged() const { return judged_; }
  SloRatios ratios() const { return RatiosOf(input_.slo, decision_input_.full_idle); }
  const Load& load() const { return load_; }
  // By prompt level, then by model level, as known so far.
  const std::vector<Candidate>& candidates() const { return decision_input_.candidates; }
  // The TLM is not asked, since reading is thought to take too long.
  bool tlm_too_slow() const { return tlm_too_slow_; }

 private:
  // A way to answer: a share of the prompt.
  struct PromptOption {
    uint32_t percent = 100;
    uint32_t worth_percent = 100;  // the prompt level of which it is known what it is worth
    PromptCount count = {};
    bool counted = true;  // rendered, not estimated
    size_t text_bytes = 0;
    size_t kept_bytes = 0;
    std::vector<double> right = {};  // by level, by the TLM that has read the prompt
  };
  using PromptOptions = std::vector<PromptOption>;

  Turn TurnOfCall() const;
  bool PromptDemanded() const {
    return input_.fixed_prompt_percent != 0 && input_.fixed_prompt_percent < 100;
  }
  bool WantsShorter() const;
  PromptOption OptionOf(const ShortenedPrompt& shortened) const;
  void LeaveExamplesOut(const ShorteningFacts& facts);
  bool ReadingPays(const ShorteningFacts& facts) const;
  void Settle();
  size_t PromptOf(const Decision& decision) const;
  CallShape ShapeOf(const PromptOption& prompt, const LevelOption& level, double tlm_ms) const;
  std::vector<Candidate> Candidates(const PromptOptions& prompts, double tlm_ms) const;
  CallDemand DemandOfCall(const CallShape& shape, const Prediction& predicted) const;

  const CallPlanInput input_;
  LiveCorrection live_;
  CallTargets targets_;
  CallTargets judged_;
  Turn turn_;
  Load load_;
  DecisionInput decision_input_;
  PromptOptions prompts_;  // ascending; the last is the most that there is
  Need need_ = Need::kLoad;
  bool read_ = false;
  double tlm_ms_ = 0;  // as predicted
  bool tlm_too_slow_ = false;
  size_t text_bytes_ = 0;
  size_t to_count_ = 0;                // index into prompts_
  absl::StatusOr<Decision> decision_;  // as if the SLO were not strict
};

}  // namespace withy::policy
