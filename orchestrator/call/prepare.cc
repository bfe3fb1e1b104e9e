#include "orchestrator/call/prepare.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "engine/encoder/tlm.h"
#include "orchestrator/board/worker_facts.h"
#include "orchestrator/call/validate.h"
#include "wire/cost_model.h"
#include "wire/decision.h"

namespace withy::orchestrator {
namespace {

using policy::CallPlan;

policy::PromptCount CountOf(const v1::TokenizeResponse& counts) {
  return {.tokens = counts.prompt_tokens(),
          .context_tokens = counts.context_tokens(),
          .resident_tokens = std::min(counts.context_tokens(), counts.resident_tokens()),
          .dropped_messages = counts.dropped_messages()};
}

double LogitOf(const engine::LevelChoice& choice, uint32_t percent) {
  for (size_t i = 0; i < choice.percents.size(); ++i) {
    if (choice.percents[i] == static_cast<int32_t>(percent)) return choice.logits[i];
  }
  return -std::numeric_limits<double>::infinity();
}

// Of the prompt's words, the share that stays at any level, in per cent.
uint32_t LeastPercent(const std::vector<engine::PrunableText>& messages) {
  size_t words = 0, stay = 0;
  for (const std::vector<bool>& message : engine::ChooseWords(messages, 1)) {
    words += message.size();
    stay += static_cast<size_t>(std::count(message.begin(), message.end(), true));
  }
  return words == 0 ? 100 : static_cast<uint32_t>(100 * stay / words);
}

// One call's way to its decision. Lives on the stack of the call's thread.
class Preparation {
 public:
  Preparation(const CallParts& parts, const std::string& app_id, const v1::GenerateRequest& request,
              const IncomingCall& call, absl::Time deadline)
      : parts_(parts), app_id_(app_id), request_(request), call_(call), deadline_(deadline) {}

  absl::StatusOr<Prepared> Run();

 private:
  absl::Status CountWhole();
  absl::StatusOr<policy::CallPlanInput> Input();
  absl::Status PlanEnergy(policy::CallPlanInput* input) const;
  void LimitHeat(policy::CallPlanInput* input) const;
  void WeighLevels(const ModelLimits& limits, policy::CallPlanInput* input);
  absl::Status Drive(CallPlan& plan);
  policy::ShorteningFacts Shortening();
  void Read(CallPlan& plan);
  policy::TlmReading ReadingOf(const PromptReading& reading, const CallPlan& plan);
  absl::Status Count(CallPlan& plan);
  policy::ShortenedPrompt ShortenTo(uint32_t percent,
                                    const std::vector<engine::PrunableText>& messages);
  void LearnFromReading();
  void WarnOfModel();
  void MeasureAfterRefusal() const;
  ModelLimits Limits() const { return LimitsOf(out_.lane, out_.worker->model()); }
  double SinceReadingMs() const { return Millis(parts_.clock.SteadyNanos() - read_ns_); }

  const CallParts& parts_;
  const std::string& app_id_;
  const v1::GenerateRequest& request_;
  const IncomingCall& call_;
  const absl::Time deadline_;
  Prepared out_;
  std::shared_ptr<TlmReader> tlm_;  // null: none; shared with those who ask after another one
  std::vector<policy::LevelOption> levels_;
  std::vector<engine::PrunableText> unread_;  // the prompt's messages, where a TLM may shorten them
  uint32_t share_without_examples_ = 100;     // of the prompt's words
  std::map<uint32_t, engine::PrunedPrompt> pruned_;  // by per cent
  int64_t read_ns_ = 0;                              // when reading began; 0 = not read
};

absl::StatusOr<Prepared> Preparation::Run() {
  WITHY_ASSIGN_OR_RETURN(out_.lane, parts_.workers.FindLane(request_.model(), deadline_));
  WITHY_RETURN_IF_ERROR(CountWhole());
  tlm_ = out_.lane == policy::Lane::kTarget ? parts_.tlm.For(*out_.worker) : parts_.tlm.Last();
  WITHY_ASSIGN_OR_RETURN(policy::CallPlanInput input, Input());
  CallPlan plan(std::move(input));
  out_.turn = plan.turn();
  WITHY_RETURN_IF_ERROR(Drive(plan));
  if (read_ns_ != 0) LearnFromReading();
  absl::StatusOr<policy::PlannedCall> planned = plan.Finish();
  if (absl::IsFailedPrecondition(planned.status())) MeasureAfterRefusal();
  WITHY_RETURN_IF_ERROR(planned.status());
  out_.plan = *std::move(planned);
  WarnOfModel();
  out_.queue_position = static_cast<uint32_t>(plan.load().ahead.size());
  const auto pruned = pruned_.find(out_.plan.decision.prompt_level_percent);
  if (pruned != pruned_.end()) out_.pruned = std::move(pruned->second);
  return std::move(out_);
}

// Every answer of a model whose file leaves open how its text is written says so.
void Preparation::WarnOfModel() {
  const std::string& warning = out_.worker->model().warning();
  std::string& told = out_.plan.decision.explanation;
  if (!warning.empty()) absl::StrAppend(&told, told.empty() ? "" : " ", "Warning: ", warning, ".");
}

// Counts the whole prompt, for a worker that is still the one whose model and cost are known: the
// answer says so, which saves asking before each call.
absl::Status Preparation::CountWhole() {
  const auto validate = [this] { return ValidateForModel(request_, Limits()); };
  out_.worker = parts_.workers.Last(out_.lane);
  // What does not fit the model of before may fit another one.
  if (out_.worker != nullptr && !validate().ok()) out_.worker = nullptr;
  while (true) {
    if (out_.worker == nullptr) {
      WITHY_ASSIGN_OR_RETURN(out_.worker, parts_.workers.Get(out_.lane, deadline_));
      WITHY_RETURN_IF_ERROR(validate());
    }
    WITHY_ASSIGN_OR_RETURN(out_.tokens, parts_.counter.CountCall(out_.lane, out_.worker, app_id_,
                                                                 request_, deadline_, call_.over));
    if (out_.tokens.instance() == out_.worker->instance()) return absl::OkStatus();
    parts_.workers.Forget(out_.lane);
    out_.worker = nullptr;
  }
}

// A budget of energy is planned as the time for which the board draws it.
absl::Status Preparation::PlanEnergy(policy::CallPlanInput* input) const {
  const double budget = request_.slo().energy_mj();
  if (budget <= 0) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(input->slo.end_to_end_ms, parts_.board.MillisFor(budget));
  input->note =
      absl::StrFormat("At the board's power of %.3g W, %.4g mJ last for %.4g ms.",
                      budget / input->slo.end_to_end_ms, budget, input->slo.end_to_end_ms);
  return absl::OkStatus();
}

void Preparation::LimitHeat(policy::CallPlanInput* input) const {
  if (out_.lane != policy::Lane::kTarget || input->fixed_level_percent != 0) return;
  const BoardWatch::Heat heat = parts_.board.HeatFor(Limits().levels_percent);
  input->most_level_percent = heat.most_level_percent;
  if (heat.why.empty()) return;
  absl::StrAppend(&input->note, input->note.empty() ? "" : " ", heat.why);
}

absl::StatusOr<policy::CallPlanInput> Preparation::Input() {
  const ModelLimits limits = Limits();
  out_.cost = wire::CostFromWire(out_.worker->cost());
  const std::vector<policy::LevelCost> costs = wire::LevelsFromWire(out_.worker->cost());
  for (const uint32_t percent : limits.levels_percent) {
    levels_.push_back({percent, policy::CostOfLevel(out_.cost, costs, percent)});
  }
  policy::CallPlanInput input;
  input.app = app_id_;
  input.slo = wire::SloFromWire(request_.slo());
  WITHY_RETURN_IF_ERROR(PlanEnergy(&input));
  input.fixed_level_percent = request_.model_level_percent();
  input.fixed_prompt_percent = request_.prompt_level_percent();
  LimitHeat(&input);
  input.max_tokens = request_.limits().max_tokens();
  const v1::Speculation speculation = request_.speculation();
  input.speculates = out_.lane == policy::Lane::kTarget && speculation != v1::SPECULATION_OFF;
  input.speculation_wanted =
      speculation != v1::SPECULATION_OFF && speculation != v1::SPECULATION_UNSPECIFIED;
  input.has_context = !request_.context_id().empty();
  input.turn = {.priority = request_.priority(), .arrived_ns = call_.arrived_ns, .id = call_.id};
  input.whole = CountOf(out_.tokens);
  input.adapted_messages = out_.tokens.adapted_messages();
  input.window = limits.context_length;
  input.default_max_tokens = out_.worker->model().default_max_tokens();
  input.cost = out_.cost;
  input.levels = levels_;
  input.live = parts_.workers.Live(out_.lane);
  WeighLevels(limits, &input);
  if (tlm_ != nullptr && input.slo.any()) {
    unread_ = Unread(request_.prompt());
    share_without_examples_ = engine::ShareWithoutExamples(unread_);
  }
  input.mostly_examples = share_without_examples_ < engine::kMostlyExamples;
  return input;
}

// How often each level is right: by the TLM's file, which audits of the app correct; for a model
// without a TLM by audits alone.
void Preparation::WeighLevels(const ModelLimits& limits, policy::CallPlanInput* input) {
  const v1::ModelDescription& model = out_.worker->model();
  const bool target = out_.lane == policy::Lane::kTarget;
  out_.tlm_fits = tlm_ != nullptr &&
                  (!target || tlm_->WhyUnfit(limits.levels_percent, model.model_id()).empty());
  if (out_.tlm_fits) {
    input->pair_accuracy = [tlm = tlm_](bool mostly_examples, uint32_t prompt_percent,
                                        uint32_t level_percent) {
      return tlm->PairAccuracy(mostly_examples, prompt_percent, level_percent);
    };
  }
  if (!target || parts_.auditor == nullptr || limits.levels_percent.size() < 2) return;
  if (out_.tlm_fits) {
    input->agreement = parts_.auditor->AgreementOf(app_id_, model);
    return;
  }
  input->pair_accuracy = [levels = limits.levels_percent,
                          chances = parts_.auditor->ChancesOf(app_id_, model)](
                             bool, uint32_t prompt_percent, uint32_t level_percent) {
    const auto level = std::find(levels.begin(), levels.end(), level_percent);
    const bool known = prompt_percent == policy::kFullPercent && level != levels.end();
    return known ? chances[static_cast<size_t>(level - levels.begin())] : 0;
  };
}

// Tells the plan what it asks for.
absl::Status Preparation::Drive(CallPlan& plan) {
  while (true) {
    switch (plan.need()) {
      case CallPlan::Need::kLoad:
        plan.OnLoad(parts_.calls.LoadBefore(out_.lane, plan.turn()));
        break;
      case CallPlan::Need::kShortening:
        plan.OnShortening(Shortening());
        if (plan.tlm_too_slow()) {
          parts_.workers.Learn(out_.lane, out_.cost, {.tlm_too_slow = true});
        }
        break;
      case CallPlan::Need::kReading:
        Read(plan);
        break;
      case CallPlan::Need::kCount:
        WITHY_RETURN_IF_ERROR(Count(plan));
        break;
      case CallPlan::Need::kNothing:
        return absl::OkStatus();
    }
  }
}

policy::ShorteningFacts Preparation::Shortening() {
  policy::ShorteningFacts facts;
  if (out_.lane != policy::Lane::kTarget) {
    facts.why_not = "prompts are shortened for the target only";
  } else if (tlm_ == nullptr) {
    facts.why_not = "no TLM is loaded";
  } else {
    const v1::ModelDescription& model = out_.worker->model();
    facts.why_not = tlm_->WhyUnfit(Limits().levels_percent, model.model_id());
  }
  if (!facts.why_not.empty()) return facts;
  for (const int32_t percent : tlm_->prompt_levels()) {
    facts.prompt_levels.push_back(static_cast<uint32_t>(percent));
  }
  facts.text_bytes = PromptBytes(request_.prompt());
  facts.least_percent = LeastPercent(unread_);
  if (share_without_examples_ < 100) {
    facts.without_examples = ShortenTo(share_without_examples_, unread_);
    facts.without_examples_worth = std::max(share_without_examples_, engine::kMostlyExamples);
  }
  return facts;
}

policy::ShortenedPrompt Preparation::ShortenTo(uint32_t percent,
                                               const std::vector<engine::PrunableText>& messages) {
  const engine::PrunedPrompt& pruned = pruned_[percent] = engine::Prune(messages, percent);
  return {.percent = percent,
          .text_bytes = pruned.text_bytes,
          .kept_bytes = pruned.kept_bytes,
          .whole = pruned.pruned_words == 0};
}

void Preparation::Read(CallPlan& plan) {
  const int64_t started_ns = parts_.clock.SteadyNanos();
  const auto reading = tlm_->Read(request_.prompt(), plan.ratios());
  if (!reading.ok()) {
    spdlog::warn("call {:016x}: the TLM cannot read the prompt: {}", call_.id,
                 std::string(reading.status().message()));
    return plan.OnUnreadable(reading.status());
  }
  read_ns_ = started_ns;
  plan.OnReading(ReadingOf(*reading, plan));
}

policy::TlmReading Preparation::ReadingOf(const PromptReading& reading, const CallPlan& plan) {
  policy::TlmReading out;
  out.why_whole = engine::WhyNotPrunable(reading.messages);
  const std::vector<uint32_t> prompt_levels(reading.prompt_level.percents.begin(),
                                            reading.prompt_level.percents.end());
  for (const uint32_t percent : plan.PercentsToTry(prompt_levels, out.why_whole.empty())) {
    out.prompts.push_back(percent < 100 ? ShortenTo(percent, reading.messages)
                                        : policy::ShortenedPrompt{});
    const double prompt_logit = LogitOf(reading.prompt_level, percent);
    for (const policy::LevelOption& level : levels_) {
      out.right.push_back(
          engine::PairChance(prompt_logit, LogitOf(reading.model_level, level.percent)));
    }
  }
  out.ms = SinceReadingMs();
  return out;
}

absl::Status Preparation::Count(CallPlan& plan) {
  WITHY_ASSIGN_OR_RETURN(
      const v1::TokenizeResponse counted,
      parts_.counter.CountCall(out_.lane, out_.worker, app_id_, request_, deadline_, call_.over,
                               &pruned_.at(plan.percent_to_count())));
  parts_.workers.Learn(
      out_.lane, out_.cost,
      {.estimated_tokens = plan.estimated_tokens(), .counted_tokens = counted.prompt_tokens()});
  plan.OnCounted(CountOf(counted));
  return absl::OkStatus();
}

// Reading, shortening and counting what is left.
void Preparation::LearnFromReading() {
  const size_t bytes = PromptBytes(request_.prompt());
  out_.tlm_ms = SinceReadingMs();
  parts_.workers.Learn(out_.lane, out_.cost, {.tlm_bytes = bytes, .tlm_ms = out_.tlm_ms});
  telemetry::RecordDuration(parts_.recorder, telemetry::Phase::kTlm, call_.id, read_ns_,
                            parts_.clock.SteadyNanos(), bytes);
}

// Has the board measured when it is idle, at the lowest level that the call may have: nothing else
// would tell that predictions are too high by now.
void Preparation::MeasureAfterRefusal() const {
  if (parts_.prober == nullptr) return;
  const uint32_t fixed = request_.model_level_percent();
  const auto level = std::find_if(
      levels_.begin(), levels_.end(),
      [&](const policy::LevelOption& option) { return fixed == 0 || option.percent == fixed; });
  if (level == levels_.end()) return;
  parts_.prober->Refused(
      out_.lane, {.app_id = app_id_,
                  .worker_instance = out_.worker->instance(),
                  .window = Limits().context_length,
                  .cost = out_.cost,
                  .level = level->cost,
                  .level_percent = level->percent,
                  .prompt_tokens = out_.tokens.context_tokens() + out_.tokens.prompt_tokens()});
}

}  // namespace

absl::StatusOr<Prepared> Prepare(const CallParts& parts, const std::string& app_id,
                                 const v1::GenerateRequest& request, const IncomingCall& call,
                                 absl::Time deadline) {
  return Preparation(parts, app_id, request, call, deadline).Run();
}

}  // namespace withy::orchestrator
