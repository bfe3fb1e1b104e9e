// From a request to a decision: counts the prompt, predicts, and where the full model on the whole
// prompt would miss the SLO asks the TLM and tries shorter prompts. Neighbours: decide.h chooses,
// prune.h shortens, tlm_reader.h reads, generate.cc runs what comes out.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "orchestrator/gateway.h"
#include "orchestrator/validate.h"
#include "orchestrator/worker_facts.h"

namespace withy::orchestrator {
namespace {

// A way to answer: a share of the prompt.
struct PromptLevel {
  uint32_t percent = 100;
  uint32_t worth_percent = 100;  // the level of which it is known what to expect of it
  double logit = 0;              // by the TLM
  engine::PrunedPrompt pruned;
  uint32_t tokens = 0;  // of the prompt
  bool counted = true;  // rendered, not estimated
  // Of the context before it, as far as the window has room for both.
  uint32_t context_tokens = 0;
  uint32_t resident_tokens = 0;  // of these: whose KV is there
  uint32_t dropped_messages = 0;

  void SetCounts(const v1::TokenizeResponse& counts) {
    tokens = counts.prompt_tokens();
    context_tokens = counts.context_tokens();
    resident_tokens = std::min(context_tokens, counts.resident_tokens());
    dropped_messages = counts.dropped_messages();
  }
};

double LogitOf(const engine::LevelChoice& choice, uint32_t percent) {
  for (size_t i = 0; i < choice.percents.size(); ++i) {
    if (choice.percents[i] == static_cast<int32_t>(percent)) return choice.logits[i];
  }
  return -std::numeric_limits<double>::infinity();
}

void TellDropped(uint32_t messages, v1::Decision* decision) {
  if (messages == 0) return;
  decision->set_dropped_messages(messages);
  absl::StrAppend(decision->mutable_explanation(), decision->explanation().empty() ? "" : " ",
                  "The window has no room for the oldest ", messages,
                  " messages of the conversation: the model does not see them.");
}

int64_t AfterMs(int64_t from_ns, double ms) {
  return std::isfinite(ms) ? from_ns + static_cast<int64_t>(ms * 1e6) : 0;
}

}  // namespace

// One call's way to its decision. Lives on the stack of the call's thread.
class Preparation {
 public:
  Preparation(Gateway& gateway, const std::string& app_id, const v1::GenerateRequest& request,
              const IncomingCall& call, absl::Time deadline)
      : gateway_(gateway), app_id_(app_id), request_(request), call_(call), deadline_(deadline) {}

  absl::StatusOr<Gateway::Prepared> Run();

 private:
  using PromptLevels = std::vector<PromptLevel>;

  absl::Status Look();
  absl::Status CountWhole();
  void SetKey();
  // A prompt level below 100 that the caller fixed; 0 = none.
  uint32_t DemandedPrompt() const {
    return request_.prompt_level_percent() < 100 ? request_.prompt_level_percent() : 0;
  }
  bool WantsShorter() const;
  std::string WhyTlmUnfit();
  uint32_t LeastPercent() const;
  bool MostlyExamples() const { return share_without_examples_ < engine::kMostlyExamples; }
  PromptLevel ShortenedTo(uint32_t percent, const std::vector<engine::PrunableText>& messages);
  void LeaveExamplesOut();
  std::string WhyWithoutTlm();
  absl::Status Shorten();
  absl::Status Read(PromptReading* reading);
  PromptLevels LevelsFrom(const PromptReading& reading);
  absl::Status Count(PromptLevel* level);
  absl::Status CheckWindow(const PromptLevel& prompt) const;
  absl::Status Settle();
  // The prompt level of a decision, which is always one of `prompts_`.
  PromptLevel& PromptOf(const v1::Decision& decision);
  std::vector<Candidate> Candidates(const PromptLevels& prompts, double tlm_ms) const;
  uint32_t PlannedTokens() const;
  CallShape ShapeOf(const PromptLevel& prompt, uint32_t level_percent, double tlm_ms) const;
  absl::Status Finish();
  void Refused() const;

  Gateway& gateway_;
  const std::string& app_id_;
  const v1::GenerateRequest& request_;
  const IncomingCall& call_;
  const absl::Time deadline_;
  Gateway::Prepared out_;
  SloTargets targets_{};
  LiveCorrection live_;
  Load load_;
  DecisionInput input_;
  std::vector<uint32_t> levels_percent_;
  std::vector<LevelCost> level_costs_;
  std::vector<engine::PrunableText> unread_;  // the prompt's messages, where a TLM may shorten them
  uint32_t share_without_examples_ = 100;     // of the prompt's words
  PromptLevels prompts_;                      // ascending; the last is what there is most of
  engine::LevelChoice model_choice_;
  Agreement agreement_;  // of the app's prompts
  double tlm_ms_ = 0;    // as predicted
};

absl::StatusOr<Gateway::Prepared> Preparation::Run() {
  WITHY_RETURN_IF_ERROR(Look());
  if (WantsShorter()) WITHY_RETURN_IF_ERROR(Shorten());
  WITHY_RETURN_IF_ERROR(Finish());
  return std::move(out_);
}

// What is known without the TLM.
absl::Status Preparation::Look() {
  WITHY_ASSIGN_OR_RETURN(out_.lane, gateway_.FindLane(request_.model(), deadline_));
  WITHY_RETURN_IF_ERROR(CountWhole());
  levels_percent_ = LimitsOf(out_.lane, out_.worker->model()).levels_percent;
  level_costs_ = LevelsOf(*out_.worker);
  out_.cost = CostOf(*out_.worker);
  live_ = gateway_.live(out_.lane);
  PromptLevel& whole = prompts_.emplace_back();
  whole.SetCounts(out_.tokens);

  input_.slo = request_.slo();
  input_.fixed_level_percent = request_.model_level_percent();
  input_.fixed_prompt = request_.prompt_level_percent() != 0;
  input_.reused_tokens = whole.resident_tokens;
  input_.full_idle = PredictFullIdle(out_.cost, live_, ShapeOf(whole, 100, 0));
  input_.speculation_wanted = request_.speculation() == v1::SPECULATION_ON;
  input_.reliability = live_.ReliabilityOf(app_id_);
  targets_ = ResolveSlo(request_.slo(), input_.full_idle);
  out_.judged = Tolerate(request_.slo(), targets_);
  if (targets_.any() && gateway_.tlm_ != nullptr) {
    unread_ = Unread(request_.prompt());
    share_without_examples_ = engine::ShareWithoutExamples(unread_);
  }
  if (gateway_.auditor_ != nullptr) agreement_ = gateway_.auditor_->Of(app_id_);
  SetKey();
  load_ = gateway_.calls_.LoadBefore(out_.lane, out_.key);
  out_.queue_position = static_cast<uint32_t>(load_.ahead.size());
  input_.candidates = Candidates(prompts_, 0);
  return absl::OkStatus();
}

// Counts the whole prompt, for a worker that is still the one whose model and cost are known: the
// answer says so, which saves asking before each call.
absl::Status Preparation::CountWhole() {
  const auto validate = [this] {
    return ValidateForModel(request_, LimitsOf(out_.lane, out_.worker->model()));
  };
  out_.worker = gateway_.LastWorkerInfo(out_.lane);
  // What does not fit the model of before may fit another one.
  if (out_.worker != nullptr && !validate().ok()) out_.worker = nullptr;
  while (true) {
    if (out_.worker == nullptr) {
      WITHY_ASSIGN_OR_RETURN(out_.worker, gateway_.GetWorkerInfo(out_.lane, deadline_));
      WITHY_RETURN_IF_ERROR(validate());
    }
    WITHY_ASSIGN_OR_RETURN(out_.tokens, gateway_.CountCall(out_.lane, out_.worker, app_id_,
                                                           request_, deadline_, call_.over));
    if (out_.tokens.instance() == out_.worker->instance()) return absl::OkStatus();
    gateway_.ForgetWorker(out_.lane);
    out_.worker = nullptr;
  }
}

// The first token's deadline: of an end-to-end time what the full model leaves for it.
void Preparation::SetKey() {
  const uint32_t max_tokens = ShapeOf(prompts_.back(), 100, 0).max_tokens;
  out_.key = {0, request_.priority(), call_.arrived_ns, call_.id};
  double first_token_ms = targets_.ttft_ms;
  if (request_.slo().end_to_end_ms() > 0) {
    first_token_ms = std::max(1.0, request_.slo().end_to_end_ms() -
                                       (max_tokens - 1) * input_.full_idle.TpotMs(max_tokens));
  }
  if (first_token_ms < kPatienceNs / 1e6) {
    out_.key.deadline_ns = AfterMs(call_.arrived_ns, first_token_ms);
  }
}

bool Preparation::WantsShorter() const {
  if (DemandedPrompt() != 0) return true;
  return request_.prompt_level_percent() == 0 && request_.model_level_percent() == 0 &&
         !FullMeets(input_);
}

std::string Preparation::WhyTlmUnfit() {
  if (out_.lane != Lane::kTarget) return "prompts are shortened for the target only";
  if (gateway_.tlm_ == nullptr) return "no TLM is loaded";
  return gateway_.tlm_->WhyUnfit(levels_percent_, out_.worker->model().model_id());
}

// Not counted yet, where anything is left out.
PromptLevel Preparation::ShortenedTo(uint32_t percent,
                                     const std::vector<engine::PrunableText>& messages) {
  PromptLevel level;
  level.SetCounts(out_.tokens);
  level.percent = level.worth_percent = percent;
  level.pruned = engine::Prune(messages, percent);
  level.counted = level.pruned.pruned_words == 0;
  level.tokens = EstimatePrunedTokens(live_, out_.tokens.prompt_tokens(), level.pruned.text_bytes,
                                      level.pruned.kept_bytes);
  return level;
}

// One more way to answer: without the worked examples, for which nothing has to be read. What it is
// worth stands in the TLM's file: of prompts that are mostly examples by what half of them is
// worth, where all that is left surely stays; a lower share may have cost other prompts part of it.
void Preparation::LeaveExamplesOut() {
  const uint32_t worth_percent =
      MostlyExamples() ? engine::kMostlyExamples : share_without_examples_;
  const bool known = gateway_.tlm_->PairAccuracy(MostlyExamples(), worth_percent, 100) > 0;
  if (share_without_examples_ == 100 || !known) return;
  prompts_.insert(prompts_.begin(), ShortenedTo(share_without_examples_, unread_));
  prompts_.front().worth_percent = worth_percent;
  input_.candidates = Candidates(prompts_, 0);
}

// Of the prompt's words, the share that stays at any level, in per cent.
uint32_t Preparation::LeastPercent() const {
  size_t words = 0, stay = 0;
  for (const std::vector<bool>& message : engine::ChooseWords(unread_, 1)) {
    words += message.size();
    stay += static_cast<size_t>(std::count(message.begin(), message.end(), true));
  }
  return words == 0 ? 100 : static_cast<uint32_t>(100 * stay / words);
}

// With what can be done without reading in `prompts_`.
std::string Preparation::WhyWithoutTlm() {
  PromptLevels guesses;
  const uint32_t least = LeastPercent();
  const size_t bytes = PromptBytes(request_.prompt());
  for (const int32_t percent : gateway_.tlm_->prompt_levels()) {
    PromptLevel& guess = guesses.emplace_back();
    guess.SetCounts(out_.tokens);
    guess.percent = guess.worth_percent = static_cast<uint32_t>(percent);
    guess.tokens = EstimatePrunedTokens(live_, out_.tokens.prompt_tokens(), bytes,
                                        bytes * std::max(guess.percent, least) / 100);
  }
  const double read_ms = TlmMs(live_, bytes);
  if (PaysToRead(out_.judged, input_.reliability, Candidates(guesses, read_ms),
                 input_.candidates)) {
    return "";
  }
  Observation seen;
  seen.tlm_too_slow = true;
  gateway_.LearnFrom(out_.lane, out_.cost, seen);
  return absl::StrFormat(
      "reading the prompt with the TLM would take %.3g ms, more than it could save", read_ms);
}

// Fills `prompts_` with shorter ones, and `input_` with what the TLM says; or says why not.
absl::Status Preparation::Shorten() {
  const uint32_t demanded = DemandedPrompt();
  std::string why = WhyTlmUnfit();
  if (why.empty() && demanded == 0) {
    LeaveExamplesOut();
    why = WhyWithoutTlm();
  }
  if (!why.empty() && demanded != 0) {
    return absl::UnimplementedError(
        absl::StrCat("prompt_level_percent is ", demanded, ", but ", why,
                     ": this server cannot shorten the prompt; leave it 0 or set it to 100"));
  }
  input_.without_tlm = why;
  if (!why.empty()) return Settle();
  const int64_t started_ns = gateway_.clock_.SteadyNanos();
  PromptReading reading;
  if (const absl::Status read = Read(&reading); !read.ok()) {
    if (demanded != 0) return Annotate(read, "prompt_level_percent");
    return Settle();
  }
  model_choice_ = reading.model_level;
  prompts_ = LevelsFrom(reading);
  // What runs may have changed while the TLM read.
  load_ = gateway_.calls_.LoadBefore(out_.lane, out_.key);
  const size_t bytes = PromptBytes(request_.prompt());
  const auto elapsed_ms = [&] {
    return static_cast<double>(gateway_.clock_.SteadyNanos() - started_ns) / kNanosPerMilli;
  };
  tlm_ms_ = std::max(elapsed_ms(), TlmMs(live_, bytes));
  WITHY_RETURN_IF_ERROR(Settle());
  out_.tlm_ms = elapsed_ms();
  Observation seen;
  seen.tlm_bytes = bytes;
  seen.tlm_ms = out_.tlm_ms;
  gateway_.LearnFrom(out_.lane, out_.cost, seen);
  telemetry::RecordDuration(gateway_.recorder_, telemetry::Phase::kTlm, call_.id, started_ns,
                            gateway_.clock_.SteadyNanos(), bytes);
  return absl::OkStatus();
}

absl::Status Preparation::Read(PromptReading* reading) {
  auto read = gateway_.tlm_->Read(request_.prompt(), RatiosOf(request_.slo(), input_.full_idle));
  if (!read.ok()) {
    spdlog::warn("call {:016x}: the TLM cannot read the prompt: {}", call_.id,
                 std::string(read.status().message()));
    input_.without_tlm = "the TLM cannot read this prompt";
    return read.status();
  }
  *reading = *std::move(read);
  input_.tlm = true;
  return absl::OkStatus();
}

Preparation::PromptLevels Preparation::LevelsFrom(const PromptReading& reading) {
  std::vector<uint32_t> percents = {100};
  if (const std::string why = engine::WhyNotPrunable(reading.messages); !why.empty()) {
    input_.note = absl::StrCat("The prompt stays whole: ", why, ".");
  } else if (DemandedPrompt() != 0) {
    percents = {DemandedPrompt()};
  } else {
    percents.assign(reading.prompt_level.percents.begin(), reading.prompt_level.percents.end());
    if (percents.back() != 100) percents.push_back(100);
  }
  PromptLevels levels;
  for (const uint32_t percent : percents) {
    PromptLevel& level = levels.emplace_back();
    if (percent < 100) {
      level = ShortenedTo(percent, reading.messages);
    } else {
      level.SetCounts(out_.tokens);
    }
    level.logit = LogitOf(reading.prompt_level, percent);
  }
  return levels;
}

// Decides until the prompt that is chosen has been rendered and counted: each round makes one
// estimate exact, and the others better.
absl::Status Preparation::Settle() {
  while (true) {
    input_.candidates = Candidates(prompts_, tlm_ms_);
    DecisionInput lenient = input_;
    lenient.slo.set_strict(false);
    WITHY_ASSIGN_OR_RETURN(const v1::Decision decision, Decide(lenient));
    PromptLevel& chosen = PromptOf(decision);
    if (chosen.counted) return absl::OkStatus();
    WITHY_RETURN_IF_ERROR(Count(&chosen));
  }
}

PromptLevel& Preparation::PromptOf(const v1::Decision& decision) {
  const auto found = std::find_if(prompts_.begin(), prompts_.end(), [&](const auto& prompt) {
    return prompt.percent == decision.prompt_level_percent();
  });
  return found != prompts_.end() ? *found : prompts_.back();
}

absl::Status Preparation::Count(PromptLevel* level) {
  WITHY_ASSIGN_OR_RETURN(const v1::TokenizeResponse counted,
                         gateway_.CountCall(out_.lane, out_.worker, app_id_, request_, deadline_,
                                            call_.over, &level->pruned));
  Observation seen;
  seen.estimated_tokens = level->tokens;
  seen.counted_tokens = counted.prompt_tokens();
  gateway_.LearnFrom(out_.lane, out_.cost, seen);
  live_.pruned_tokens_ratio *= static_cast<double>(counted.prompt_tokens()) / level->tokens;
  level->SetCounts(counted);
  level->counted = true;
  for (PromptLevel& other : prompts_) {
    if (other.counted) continue;
    other.tokens = EstimatePrunedTokens(live_, out_.tokens.prompt_tokens(), other.pruned.text_bytes,
                                        other.pruned.kept_bytes);
  }
  return absl::OkStatus();
}

// Tokens that the answer is predicted to have: as many as the caller allows, else as the app's have
// been. What the default allows, all of the window, says nothing.
uint32_t Preparation::PlannedTokens() const {
  if (request_.limits().max_tokens() != 0) return request_.limits().max_tokens();
  const double usual = std::max(1.0, std::ceil(live_.AnswerTokensOf(app_id_)));
  const uint32_t bound = out_.worker->model().default_max_tokens();
  return std::min(static_cast<uint32_t>(usual),
                  bound != 0 ? bound : std::numeric_limits<uint32_t>::max());
}

CallShape Preparation::ShapeOf(const PromptLevel& prompt, uint32_t level_percent,
                               double tlm_ms) const {
  CallShape shape;
  shape.prefill_tokens = prompt.tokens + prompt.context_tokens - prompt.resident_tokens;
  shape.max_tokens = PlannedTokens();
  shape.level = CostOfLevel(out_.cost, level_costs_, level_percent);
  shape.tlm_ms = tlm_ms;
  shape.resident_tokens = prompt.resident_tokens;
  shape.level_percent = level_percent;
  shape.answer_tokens = live_.AnswerTokensOf(app_id_);
  return shape;
}

std::vector<Candidate> Preparation::Candidates(const PromptLevels& prompts, double tlm_ms) const {
  std::vector<Candidate> candidates;
  for (const PromptLevel& prompt : prompts) {
    for (const uint32_t level : levels_percent_) {
      const CallShape shape = ShapeOf(prompt, level, tlm_ms);
      Candidate& candidate = candidates.emplace_back();
      candidate.level_percent = level;
      candidate.prompt_percent = prompt.percent;
      candidate.predicted = Predict(out_.cost, live_, shape, load_);
      candidate.prefill_tokens = shape.prefill_tokens;
      const auto known = [&](const auto& chance_at) {
        return agreement_.Expect(level, chance_at(level), chance_at(levels_percent_.back()));
      };
      if (input_.tlm) {
        candidate.probability = known([&](uint32_t percent) {
          return engine::PairChance(prompt.logit, LogitOf(model_choice_, percent));
        });
      }
      if (gateway_.tlm_ != nullptr) {
        candidate.expected = known([&](uint32_t percent) {
          return gateway_.tlm_->PairAccuracy(MostlyExamples(), prompt.worth_percent, percent);
        });
      }
    }
  }
  return candidates;
}

// What the worker would refuse: of what stands before the prompt only the system prompt is sure to
// be left. One token of the window is the answer's.
absl::Status Preparation::CheckWindow(const PromptLevel& prompt) const {
  const uint32_t window = LimitsOf(out_.lane, out_.worker->model()).context_length;
  const uint32_t tokens = prompt.context_tokens + prompt.tokens;
  if (window == 0 || tokens < window) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the prompt", request_.context_id().empty() ? " needs " : " and the system prompt need ",
      tokens, " tokens and the window has ", window,
      " (one is the answer's): shorten the prompt, or raise model.context_length if the model "
      "allows it"));
}

absl::Status Preparation::Finish() {
  absl::StatusOr<v1::Decision> decision = Decide(input_);
  if (absl::IsFailedPrecondition(decision.status())) Refused();
  WITHY_RETURN_IF_ERROR(decision.status());
  out_.decision = *std::move(decision);
  if (out_.tokens.adapted_messages() > 0) {
    out_.decision.set_explanation(absl::StrCat(
        out_.decision.explanation(), " The chat template does not take the context as it stands: ",
        out_.tokens.adapted_messages(), " of its messages were merged or added for it."));
  }
  PromptLevel& prompt = PromptOf(out_.decision);
  WITHY_RETURN_IF_ERROR(CheckWindow(prompt));
  TellDropped(prompt.dropped_messages, &out_.decision);
  out_.shape = ShapeOf(prompt, out_.decision.model_level_percent(), tlm_ms_);
  out_.pruned = std::move(prompt.pruned);
  out_.predicted = Predict(out_.cost, live_, out_.shape, load_);
  std::optional<CostParameters> lowest;
  if (request_.model_level_percent() == 0) {
    lowest = CostOfLevel(out_.cost, level_costs_, levels_percent_.front());
  }
  out_.demand = DemandOf(out_.cost, live_, out_.shape, out_.predicted, lowest);
  out_.demand.first_token_by_ns = AfterMs(call_.arrived_ns, out_.judged.ttft_ms);
  out_.demand.tpot_limit_ms = std::isfinite(out_.judged.tpot_ms) ? out_.judged.TokenMs() : 0;
  out_.demand.ramp_ms = out_.judged.ramp_ms;
  out_.demand.end_by_ns = AfterMs(call_.arrived_ns, out_.judged.end_to_end_ms);
  return absl::OkStatus();
}

// Has the board measured when it is idle, at the lowest level that the call may have: nothing else
// would tell that predictions are too high by now.
void Preparation::Refused() const {
  if (gateway_.prober_ == nullptr) return;
  const uint32_t fixed = request_.model_level_percent();
  const uint32_t percent = fixed != 0 ? fixed : levels_percent_.front();
  gateway_.prober_->Refused(
      out_.lane, {.app_id = app_id_,
                  .worker_instance = out_.worker->instance(),
                  .window = LimitsOf(out_.lane, out_.worker->model()).context_length,
                  .cost = out_.cost,
                  .level = CostOfLevel(out_.cost, level_costs_, percent),
                  .level_percent = percent,
                  .prompt_tokens = out_.tokens.context_tokens() + out_.tokens.prompt_tokens()});
}

absl::StatusOr<Gateway::Prepared> Gateway::Prepare(const std::string& app_id,
                                                   const v1::GenerateRequest& request,
                                                   const IncomingCall& call, absl::Time deadline) {
  return Preparation(*this, app_id, request, call, deadline).Run();
}

void FillKept(const engine::PrunedPrompt& pruned,
              google::protobuf::RepeatedPtrField<v1::KeptSpans>* wire) {
  if (pruned.pruned_words == 0) return;
  for (const std::vector<engine::ByteSpan>& spans : pruned.kept) {
    v1::KeptSpans* message = wire->Add();
    for (const engine::ByteSpan& span : spans) {
      v1::ByteSpan* out = message->add_spans();
      out->set_begin(span.begin);
      out->set_end(span.end);
    }
  }
}

}  // namespace withy::orchestrator
