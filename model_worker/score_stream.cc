#include "model_worker/score_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "engine/session/scored_text.h"
#include "policy/constants.h"
#include "rpc/status.h"
#include "wire/score.h"

namespace withy::model_worker {
namespace {

absl::StatusOr<engine::ScoreContestant> ContestantFromWire(const std::string& field,
                                                           const v1::ScoreSetting& setting,
                                                           engine::Model& model) {
  engine::ScoreContestant contestant{.model = &model};
  WITHY_ASSIGN_OR_RETURN(contestant.level,
                         engine::FindLevel(field + ".model_level_percent",
                                           setting.model_level_percent(), model.info()));
  WITHY_ASSIGN_OR_RETURN(contestant.kv_format,
                         engine::ScoreFormatFromWire(field + ".kv_format", setting.kv_format()));
  return contestant;
}

bool HasPrompt(const v1::ScoreRequest& request) {
  return request.prompt().form_case() != v1::Prompt::FORM_NOT_SET;
}

}  // namespace

absl::StatusOr<std::unique_ptr<engine::TextScorer>> ScorerFromWire(
    const v1::ScoreRequest& request, const serving::SessionEnv& env, engine::Model& model,
    const engine::CancelCheck* cancelled) {
  if (request.text().empty()) {
    return absl::InvalidArgumentError("text is empty: give the text that is to be scored");
  }
  if (request.logprobs() > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs is ", request.logprobs(), ": at most ", kMaxTopLogprobs));
  }
  if (request.window_tokens() > 0 && HasPrompt(request)) {
    return absl::InvalidArgumentError(
        "window_tokens: a text behind a prompt is scored as one window; leave one of the two out");
  }
  std::vector<engine::ScoreContestant> contestants;
  if (request.has_reference()) {
    WITHY_ASSIGN_OR_RETURN(contestants.emplace_back(),
                           ContestantFromWire("reference", request.reference(), model));
  }
  WITHY_ASSIGN_OR_RETURN(contestants.emplace_back(),
                         ContestantFromWire("setting", request.setting(), model));
  const auto window = static_cast<uint32_t>(env.window);
  if (request.window_tokens() > window) {
    return absl::InvalidArgumentError(absl::StrCat("window_tokens is ", request.window_tokens(),
                                                   ": at most ", window, ", the model's window"));
  }
  std::vector<engine::Segment> prompt;
  if (HasPrompt(request)) {
    WITHY_ASSIGN_OR_RETURN(prompt, engine::PromptFromWire(request.prompt(), {}));
  }
  WITHY_ASSIGN_OR_RETURN(engine::ScoredText text,
                         engine::EncodeScoredText(env.encoder, prompt, request.text(), cancelled));
  text.window = static_cast<int32_t>(request.window_tokens());
  if (text.window == 0 && text.ids.size() > window) {
    return absl::OutOfRangeError(absl::StrCat("prompt and text have ", text.ids.size(),
                                              " tokens, the model's window ", window,
                                              ": set window_tokens, or shorten the text"));
  }
  const auto longest = static_cast<int32_t>(
      text.window == 0 ? text.ids.size()
                       : std::min(text.ids.size(), static_cast<size_t>(text.window)));
  const size_t kv_bytes = engine::TextScorer::KvBytes(contestants, longest);
  if (kv_bytes > kMostScoreKvBytes) {
    return absl::OutOfRangeError(absl::StrCat("KV of ", longest, " tokens takes ", kv_bytes >> 20,
                                              " MiB, and at most ", kMostScoreKvBytes >> 20,
                                              " MiB are spent on scoring: set a smaller "
                                              "window_tokens"));
  }
  return engine::TextScorer::Create(std::move(contestants), std::move(text),
                                    {.report_tokens = request.report_tokens(),
                                     .top_logprobs = static_cast<int32_t>(request.logprobs())});
}

ScoreStream::ScoreStream(std::shared_ptr<Queue> queue, std::shared_ptr<ScorePlace> place,
                         const v1::ScoreRequest& request, const engine::Tokenizer& tokenizer)
    : queue_(std::move(queue)), place_(std::move(place)), tokenizer_(tokenizer) {
  reported_.logprobs = true;
  reported_.top_logprobs = static_cast<int32_t>(request.logprobs());
}

void ScoreStream::Scored(std::span<const engine::Sample> tokens,
                         const serving::ScoreProgress& progress) {
  computed_tokens_ = progress.computed_tokens;
  if (tokens.empty() && !pace_.Due(Clock::Real().SteadyNanos())) return;
  v1::ScoreResponse response;
  for (const engine::Sample& token : tokens) {
    *response.add_tokens() = engine::ToWire(token, reported_, tokenizer_);
  }
  response.set_progress(progress.share);
  response.set_computed_tokens(computed_tokens_);
  queue_->Push(std::move(response));
}

void ScoreStream::Finished(const std::vector<engine::TextScore>& scores) {
  v1::ScoreResponse response;
  response.set_progress(1);
  response.set_computed_tokens(computed_tokens_);
  *response.mutable_result() = engine::ScoreResultToWire(scores);
  place_->Leave();
  queue_->Push(std::move(response));
  queue_->Close(absl::OkStatus());
}

void ScoreStream::Failed(const absl::Status& status) {
  place_->Leave();
  const bool retry = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  queue_->Close(retry ? rpc::WithRetryAfter(status, policy::kScoreRetryMs) : status);
}

}  // namespace withy::model_worker
