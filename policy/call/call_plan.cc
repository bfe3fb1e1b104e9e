#include "policy/call/call_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace withy::policy {
namespace {

// Tokens that the answer is predicted to have: as many as the caller allows, else as the app's have
// been. What the default allows, all of the window, says nothing.
uint32_t PlannedTokens(const CallPlanInput& input, const LiveCorrection& live) {
  if (input.max_tokens != 0) return input.max_tokens;
  const double usual = std::max(1.0, std::ceil(live.AnswerTokensOf(input.app)));
  const uint32_t bound = input.default_max_tokens != 0 ? input.default_max_tokens
                                                       : std::numeric_limits<uint32_t>::max();
  return std::min(static_cast<uint32_t>(usual), bound);
}

// What the worker would refuse: of what stands before the prompt only the system prompt is sure to
// be left. One token of the window is the answer's.
absl::Status CheckWindow(const CallPlanInput& input, const PromptCount& prompt) {
  const uint32_t tokens = prompt.context_tokens + prompt.tokens;
  if (input.window == 0 || tokens < input.window) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the prompt", input.has_context ? " and the system prompt need " : " needs ", tokens,
      " tokens and the window has ", input.window,
      " (one is the answer's): shorten the prompt, or raise model.context_length if the model "
      "allows it"));
}

}  // namespace

CallPlan::CallPlan(CallPlanInput input) : input_(std::move(input)), live_(input_.live) {
  live_.slowdown = live_.SlowdownToExpect();
  PromptOption& whole = prompts_.emplace_back();
  whole.count = input_.whole;
  decision_input_.slo = input_.slo;
  decision_input_.fixed_level_percent = input_.fixed_level_percent;
  decision_input_.most_level_percent = input_.most_level_percent;
  decision_input_.note = input_.note;
  decision_input_.fixed_prompt = input_.fixed_prompt_percent != 0;
  decision_input_.reused_tokens = whole.count.resident_tokens;
  decision_input_.full_idle =
      PredictFullIdle(input_.cost, live_, ShapeOf(whole, input_.levels.back(), 0));
  decision_input_.speculates = input_.speculates;
  decision_input_.speculation_wanted = input_.speculation_wanted;
  decision_input_.reliability = live_.ReliabilityOf(input_.app);
  targets_ = ResolveSlo(input_.slo, decision_input_.full_idle);
  targets_.arrived_ns = input_.turn.arrived_ns;
  judged_ = Tolerate(input_.slo, targets_);
  turn_ = TurnOfCall();
}

// The first token's deadline: of an end-to-end time what the full model leaves for it.
Turn CallPlan::TurnOfCall() const {
  Turn turn = input_.turn;
  double first_token_ms = targets_.ttft_ms;
  if (input_.slo.end_to_end_ms > 0) {
    const uint32_t tokens = PlannedTokens(input_, live_);
    first_token_ms = std::max(
        1.0, input_.slo.end_to_end_ms - (tokens - 1) * decision_input_.full_idle.TpotMs(tokens));
  }
  const bool within_patience = first_token_ms * kNanosPerMilli < kPatienceNs;
  turn.deadline_ns = within_patience ? NanosAfter(turn.arrived_ns, first_token_ms) : 0;
  return turn;
}

void CallPlan::OnLoad(Load load) {
  load_ = std::move(load);
  decision_input_.candidates = Candidates(prompts_, tlm_ms_);
  if (!read_ && WantsShorter()) {
    need_ = Need::kShortening;
  } else {
    Settle();
  }
}

bool CallPlan::WantsShorter() const {
  if (PromptDemanded()) return true;
  const bool decides = input_.fixed_prompt_percent == 0 && input_.fixed_level_percent == 0;
  return decides && (input_.shorten_always || !FullMeets(decision_input_));
}

void CallPlan::OnShortening(const ShorteningFacts& facts) {
  text_bytes_ = facts.text_bytes;
  std::string why_not = facts.why_not;
  if (why_not.empty() && !PromptDemanded()) {
    LeaveExamplesOut(facts);
    if (!ReadingPays(facts)) {
      tlm_too_slow_ = true;
      why_not = absl::StrFormat(
          "reading the prompt with the TLM would take %.3g ms, more than it could save",
          TlmMs(live_, text_bytes_));
    }
  }
  if (why_not.empty()) {
    need_ = Need::kReading;
  } else if (PromptDemanded()) {
    decision_ = absl::UnimplementedError(
        absl::StrCat("prompt_level_percent is ", input_.fixed_prompt_percent, ", but ", why_not,
                     ": this server cannot shorten the prompt; leave it 0 or set it to 100"));
    need_ = Need::kNothing;
  } else {
    decision_input_.without_tlm = why_not;
    Settle();
  }
}

// One more way to answer: without the worked examples, for which nothing has to be read. Where most
// of the prompt is examples, it is worth what half of such a prompt is, where all that is left
// surely stays; a lower share may have cost other prompts part of it.
void CallPlan::LeaveExamplesOut(const ShorteningFacts& facts) {
  const bool known = input_.pair_accuracy &&
                     input_.pair_accuracy(input_.mostly_examples, facts.without_examples_worth,
                                          input_.levels.back().percent) > 0;
  if (facts.without_examples.percent == 100 || !known) return;
  prompts_.insert(prompts_.begin(), OptionOf(facts.without_examples));
  prompts_.front().worth_percent = facts.without_examples_worth;
  decision_input_.candidates = Candidates(prompts_, 0);
}

// Against what can be done without reading, which stands in `prompts_`.
bool CallPlan::ReadingPays(const ShorteningFacts& facts) const {
  PromptOptions guesses;
  for (const uint32_t percent : facts.prompt_levels) {
    PromptOption& guess = guesses.emplace_back();
    guess.percent = guess.worth_percent = percent;
    guess.count = input_.whole;
    guess.count.tokens =
        EstimatePrunedTokens(live_, input_.whole.tokens, facts.text_bytes,
                             facts.text_bytes * std::max(percent, facts.least_percent) / 100);
  }
  if (guesses.empty()) return false;
  return PaysToRead(judged_, decision_input_.reliability,
                    Candidates(guesses, TlmMs(live_, facts.text_bytes)),
                    decision_input_.candidates);
}

std::vector<uint32_t> CallPlan::PercentsToTry(const std::vector<uint32_t>& prompt_levels,
                                              bool prunable) const {
  if (!prunable) return {100};
  if (PromptDemanded()) return {input_.fixed_prompt_percent};
  std::vector<uint32_t> percents = prompt_levels;
  if (percents.empty() || percents.back() != 100) percents.push_back(100);
  return percents;
}

void CallPlan::OnReading(const TlmReading& reading) {
  read_ = true;
  decision_input_.tlm = !reading.right.empty();
  if (!reading.why_whole.empty()) {
    absl::StrAppend(&decision_input_.note, decision_input_.note.empty() ? "" : " ",
                    "The prompt stays whole: ", reading.why_whole, ".");
  }
  prompts_.clear();
  const size_t levels = input_.levels.size();
  for (size_t i = 0; i < reading.prompts.size(); ++i) {
    PromptOption& option = prompts_.emplace_back(OptionOf(reading.prompts[i]));
    if (reading.right.empty()) continue;
    const auto first = reading.right.begin() + static_cast<std::ptrdiff_t>(i * levels);
    option.right.assign(first, first + static_cast<std::ptrdiff_t>(levels));
  }
  tlm_ms_ = std::max(reading.ms, TlmMs(live_, text_bytes_));
  need_ = Need::kLoad;
}

void CallPlan::OnUnreadable(const absl::Status& why) {
  if (PromptDemanded()) {
    decision_ = Annotate(why, "prompt_level_percent");
    need_ = Need::kNothing;
    return;
  }
  decision_input_.without_tlm = "the TLM cannot read this prompt";
  Settle();
}

// Not counted yet, where anything is left out.
CallPlan::PromptOption CallPlan::OptionOf(const ShortenedPrompt& shortened) const {
  PromptOption option;
  option.percent = option.worth_percent = shortened.percent;
  option.count = input_.whole;
  option.counted = shortened.whole;
  option.text_bytes = shortened.text_bytes;
  option.kept_bytes = shortened.kept_bytes;
  option.count.tokens =
      EstimatePrunedTokens(live_, input_.whole.tokens, shortened.text_bytes, shortened.kept_bytes);
  return option;
}

// Decides until the prompt that is chosen has been rendered and counted: each round makes one
// estimate exact, and the others better.
void CallPlan::Settle() {
  decision_input_.candidates = Candidates(prompts_, tlm_ms_);
  DecisionInput lenient = decision_input_;
  lenient.slo.strict = false;
  decision_ = input_.decide(lenient);
  need_ = Need::kNothing;
  if (!decision_.ok()) return;
  to_count_ = PromptOf(*decision_);
  if (!prompts_[to_count_].counted) need_ = Need::kCount;
}

void CallPlan::OnCounted(const PromptCount& count) {
  PromptOption& chosen = prompts_[to_count_];
  live_.pruned_tokens_ratio *= static_cast<double>(count.tokens) / chosen.count.tokens;
  chosen.count = count;
  chosen.counted = true;
  for (PromptOption& other : prompts_) {
    if (other.counted) continue;
    other.count.tokens =
        EstimatePrunedTokens(live_, input_.whole.tokens, other.text_bytes, other.kept_bytes);
  }
  Settle();
}

size_t CallPlan::PromptOf(const Decision& decision) const {
  const auto found = std::find_if(prompts_.begin(), prompts_.end(), [&](const auto& prompt) {
    return prompt.percent == decision.prompt_level_percent;
  });
  return found != prompts_.end() ? static_cast<size_t>(found - prompts_.begin())
                                 : prompts_.size() - 1;
}

CallShape CallPlan::ShapeOf(const PromptOption& prompt, const LevelOption& level,
                            double tlm_ms) const {
  CallShape shape;
  shape.prefill_tokens =
      prompt.count.tokens + prompt.count.context_tokens - prompt.count.resident_tokens;
  shape.max_tokens = PlannedTokens(input_, live_);
  shape.level = level.cost;
  shape.tlm_ms = tlm_ms + level.switch_ms;
  shape.resident_tokens = prompt.count.resident_tokens;
  shape.level_percent = level.percent;
  shape.answer_tokens = live_.AnswerTokensOf(input_.app);
  // The lossless lever goes before the lossy ones: lower levels are not counted on to gain by it.
  const bool full = level.percent == input_.levels.back().percent;
  if (input_.speculates && full) shape.speedup = live_.SpeedupOf(input_.app);
  return shape;
}

std::vector<Candidate> CallPlan::Candidates(const PromptOptions& prompts, double tlm_ms) const {
  std::vector<Candidate> candidates;
  const size_t full = input_.levels.size() - 1;
  for (const PromptOption& prompt : prompts) {
    for (size_t i = 0; i < input_.levels.size(); ++i) {
      const LevelOption& level = input_.levels[i];
      const CallShape shape = ShapeOf(prompt, level, tlm_ms);
      Candidate& candidate = candidates.emplace_back();
      candidate.level_percent = level.percent;
      candidate.prompt_percent = prompt.percent;
      candidate.predicted = Predict(input_.cost, live_, shape, load_);
      candidate.prefill_tokens = shape.prefill_tokens;
      candidate.speedup = shape.speedup;
      const auto known = [&](const auto& chance_at) {
        return input_.agreement.Expect(level.percent, chance_at(i), chance_at(full));
      };
      if (!prompt.right.empty()) {
        candidate.probability = known([&](size_t at) { return prompt.right[at]; });
      }
      if (input_.pair_accuracy) {
        candidate.expected = known([&](size_t at) {
          return input_.pair_accuracy(input_.mostly_examples, prompt.worth_percent,
                                      input_.levels[at].percent);
        });
      }
    }
  }
  return candidates;
}

CallDemand CallPlan::DemandOfCall(const CallShape& shape, const Prediction& predicted) const {
  std::optional<CostParameters> lowest;
  if (input_.may_fall && input_.fixed_level_percent == 0) lowest = input_.levels.front().cost;
  CallDemand demand = DemandOf(input_.cost, live_, shape, predicted, lowest);
  demand.targets = judged_;
  return demand;
}

absl::StatusOr<PlannedCall> CallPlan::Finish() const {
  WITHY_RETURN_IF_ERROR(decision_.status());
  PlannedCall call;
  call.decision = *decision_;
  if (input_.slo.strict) {
    WITHY_ASSIGN_OR_RETURN(call.decision, input_.decide(decision_input_));
  }
  std::string& explanation = call.decision.explanation;
  if (input_.adapted_messages > 0) {
    absl::StrAppend(&explanation, " The chat template does not take the context as it stands: ",
                    input_.adapted_messages, " of its messages were merged or added for it.");
  }
  const PromptOption& prompt = prompts_[PromptOf(call.decision)];
  WITHY_RETURN_IF_ERROR(CheckWindow(input_, prompt.count));
  call.decision.dropped_messages = prompt.count.dropped_messages;
  if (prompt.count.dropped_messages > 0) {
    absl::StrAppend(&explanation, explanation.empty() ? "" : " ",
                    "The window has no room for the oldest ", prompt.count.dropped_messages,
                    " messages of the conversation: the model does not see them.");
  }
  const auto level =
      std::find_if(input_.levels.begin(), input_.levels.end(), [&](const LevelOption& option) {
        return option.percent == call.decision.model_level_percent;
      });
  call.shape =
      ShapeOf(prompt, level != input_.levels.end() ? *level : input_.levels.back(), tlm_ms_);
  call.predicted = Predict(input_.cost, live_, call.shape, load_);
  call.demand = DemandOfCall(call.shape, call.predicted);
  call.work = {.prefill_tokens = call.shape.prefill_tokens,
               .remaining_tokens = call.shape.max_tokens,
               .resident_tokens = call.shape.resident_tokens,
               .open_ended = input_.max_tokens == 0};
  return call;
}

}  // namespace withy::policy
