#include "engine/session/solo_answer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/status.h"
#include "engine/model/scratch_kv.h"
#include "engine/output/output_constraint.h"

namespace withy::engine {
namespace {

constexpr int32_t kMoreRoom = 128;  // tokens

// The state of one answer in progress.
class SoloRun {
 public:
  SoloRun(Model& model, const SoloOptions& options, const SoloHooks& hooks, Clock& clock,
          std::vector<int32_t> ids, int32_t level)
      : model_(model),
        options_(options),
        hooks_(hooks),
        clock_(clock),
        ids_(std::move(ids)),
        level_(level),
        kv_(model.info(), static_cast<int32_t>(ids_.size())),
        logits_(static_cast<size_t>(model.info().vocab_size)) {}

  bool Cancelled() const { return hooks_.cancelled && hooks_.cancelled(); }
  bool WindowFull() const { return static_cast<int32_t>(ids_.size()) >= options_.window; }
  const std::vector<int32_t>& ids() const { return ids_; }
  std::span<const float> logits() const { return logits_; }
  void Append(int32_t id) { ids_.push_back(id); }

  // Computes the tokens not computed yet; returns false if cancelled meanwhile.
  absl::StatusOr<bool> CatchUp() {
    const auto total = static_cast<int32_t>(ids_.size());
    while (computed_ < total) {
      if (Cancelled()) return false;
      const int32_t rows = std::min(options_.piece_rows, total - computed_);
      WITHY_RETURN_IF_ERROR(Step(rows, computed_ + rows == total));
      if (computed_ < total && hooks_.on_prompt) hooks_.on_prompt(computed_, total);
    }
    return true;
  }

 private:
  absl::Status Step(int32_t count, bool want_logits) {
    std::vector<Row> rows(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = computed_ + i;
      rows[static_cast<size_t>(i)] = {.token = ids_[static_cast<size_t>(position)],
                                      .position = position,
                                      .slot = position,
                                      .level = level_,
                                      .want_logits = want_logits && i + 1 == count,
                                      .ancestor_slots = {}};
    }
    if (computed_ + count > room_) {
      // Answers may be as long as the window, but seldom are.
      room_ = computed_ + count + kMoreRoom;
      kv_.Extend(room_);
    }
    const ContextView view = kv_.View(computed_);
    const int64_t start = clock_.SteadyNanos();
    const PassTag tag = hooks_.next_pass ? hooks_.next_pass() : PassTag{};
    WITHY_RETURN_IF_ERROR(
        model_.Forward({.rows = rows, .contexts = {&view, 1}, .tag = tag}, logits_.data()));
    if (hooks_.on_step) hooks_.on_step(count, start, clock_.SteadyNanos());
    computed_ += count;
    return absl::OkStatus();
  }

  Model& model_;
  const SoloOptions& options_;
  const SoloHooks& hooks_;
  Clock& clock_;
  std::vector<int32_t> ids_;
  const int32_t level_;
  ScratchKv kv_;
  std::vector<float> logits_;
  int32_t computed_ = 0;
  int32_t room_ = 0;  // capacity of `kv_` in tokens
};

}  // namespace

absl::StatusOr<Sampler> MakeSampler(const SamplingParams& params, const Tokenizer& tokenizer) {
  SamplingParams own = params;
  const std::span<const int32_t> ends = tokenizer.end_of_generation_ids();
  own.unpenalized.assign(ends.begin(), ends.end());
  return Sampler::Create(own);
}

int32_t LevelIndex(const ModelInfo& info, int32_t percent) {
  for (size_t i = 0; i < info.levels.size(); ++i) {
    if (info.levels[i].percent == percent) return static_cast<int32_t>(i);
  }
  return -1;
}

absl::StatusOr<SoloResult> AnswerAlone(Model& model, const ConversationEncoder& encoder,
                                       const AnswerRequest& request, const SoloOptions& options,
                                       const SoloHooks& hooks, Clock& clock) {
  SoloResult result;
  result.times.started = clock.SteadyNanos();
  auto encoded =
      encoder.EncodePrompt(request.prompt, options.window, /*recorded=*/0,
                           hooks.cancelled ? &hooks.cancelled : nullptr, request.truncation);
  if (absl::IsCancelled(encoded.status())) {
    result.reason = FinishReason::kCancelled;
    return result;
  }
  WITHY_ASSIGN_OR_RETURN(EncodedConversation prompt, std::move(encoded));
  WITHY_ASSIGN_OR_RETURN(Sampler sampler, MakeSampler(request.sampling, encoder.tokenizer()));
  result.prompt_tokens = static_cast<int32_t>(prompt.ids.size());
  sampler.BeginAnswer(result.prompt_tokens);
  const AnswerTools tools = encoder.ToolsOf({}, request.prompt);
  AnswerStream answer(encoder.tokenizer(), request.max_tokens, request.stop, tools.markers());
  OutputConstraint constraint(request.grammar.get(), encoder.tokenizer());
  answer.BeginBehind(prompt.ids);
  constraint.BeginBehind(prompt.ids);
  SoloRun run(model, options, hooks, clock, std::move(prompt.ids),
              LevelIndex(model.info(), request.level_percent));
  if (prompt.answer_begins_in_thought) constraint.BeginInThought();
  const auto emit = [&](const AnswerDelta& delta) {
    if (hooks.on_delta && (delta.token.has_value() || !delta.text.empty())) hooks.on_delta(delta);
  };

  while (!answer.finished()) {
    WITHY_ASSIGN_OR_RETURN(const bool computed, run.CatchUp());
    if (!computed) {
      emit({.text = answer.Finish(FinishReason::kCancelled), .token = std::nullopt});
      break;
    }
    WITHY_ASSIGN_OR_RETURN(const std::span<const uint32_t> allowed, constraint.Mask());
    WITHY_ASSIGN_OR_RETURN(Sample sample, sampler.Pick(run.logits(), run.ids().size(), run.ids(),
                                                       /*times=*/nullptr, allowed));
    result.times.last_token = clock.SteadyNanos();
    if (result.times.first_token == 0) result.times.first_token = result.times.last_token;
    run.Append(sample.id);
    std::string text = answer.Push(sample.id);
    if (answer.reason() == FinishReason::kEndOfTurn) {
      emit({.text = std::move(text), .token = std::nullopt});
      break;
    }
    constraint.Accept(sample.id);
    result.tokens.push_back(sample);
    emit({.text = std::move(text), .token = std::move(sample)});
    if (!answer.finished() && constraint.Over()) {
      emit({.text = answer.Finish(FinishReason::kEndOfTurn), .token = std::nullopt});
    }
    if (!answer.finished() && run.WindowFull()) {
      emit({.text = answer.Finish(FinishReason::kContextFull), .token = std::nullopt});
    }
  }
  result.reason = answer.reason();
  result.text = answer.text();
  result.tool_calls = tools.Read(result.text, result.reason).calls;
  return result;
}

}  // namespace withy::engine
