#include "orchestrator/call/score.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "orchestrator/call/validate.h"

namespace withy::orchestrator {
namespace {

// How soon a call notices that its client has left.
constexpr absl::Duration kScoreLook = absl::Milliseconds(100);
constexpr int kScoreTries = 3;
constexpr double kMillijoulesPerJoule = 1000;

}  // namespace

absl::Status TextScores::Score(const Caller& caller, const v1::ScoreRequest& request,
                               CallControl& control, const Sink& on_message) {
  WITHY_RETURN_IF_ERROR(control.Check());  // it may have waited for another text
  WITHY_ASSIGN_OR_RETURN(const std::string app_id, apps_.Authenticate(caller, control.deadline()));
  const absl::Status scored = ScoreFor(app_id, request, control, on_message);
  refusals_.Tell({.method = "Score", .app_id = app_id}, scored);
  return scored;
}

absl::Status TextScores::ScoreFor(const std::string& app_id, const v1::ScoreRequest& request,
                                  CallControl& control, const Sink& on_message) {
  WITHY_RETURN_IF_ERROR(ValidateScore(request));
  WITHY_ASSIGN_OR_RETURN(const policy::Lane lane,
                         workers_.FindLane(request.model(), control.deadline()));
  if (lane == policy::Lane::kDraft) {
    return absl::UnimplementedError(
        "model: draft_worker scores no texts, since it has to draft whenever the target decodes; "
        "leave model empty, or compare files with `withyctl score FILE --model A --against B`");
  }
  const std::string app = apps_.NameOf(app_id);
  WITHY_ASSIGN_OR_RETURN(const AppBudgets::Place place, budgets_.Begin(app));
  WITHY_RETURN_IF_ERROR(AwaitAudit(control));
  const uint64_t charged = RandomId64();
  uint64_t computed_tokens = 0;
  board_.CallBegins(charged, /*yields=*/true);
  const absl::Status scored =
      ScoreOnWorker(request, control, [&](const v1::ScoreResponse& message) {
        computed_tokens = std::max(computed_tokens, message.computed_tokens());
        return on_message(message);
      });
  budgets_.Spend(app, computed_tokens, board_.CallEnds(charged) / kMillijoulesPerJoule);
  absl::MutexLock lock(&mutex_);
  --callers_;
  return scored;
}

absl::Status TextScores::ScoreOnWorker(const v1::ScoreRequest& request, CallControl& control,
                                       const Sink& on_message) {
  bool told = false;
  const auto tell = [&](v1::ScoreResponse& message) {
    told = true;
    return on_message(message);
  };
  absl::Status scored = backends_.Score(request, control, tell);
  // An audit that was stopped leaves its place a moment later.
  for (int i = 0; i < kScoreTries && absl::IsResourceExhausted(scored) && !told; ++i) {
    absl::SleepFor(kScoreLook);
    scored = control.Check();
    if (scored.ok()) scored = backends_.Score(request, control, tell);
  }
  return scored;
}

absl::Status TextScores::AwaitAudit(CallControl& control) {
  const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !auditing_; };
  absl::MutexLock lock(&mutex_);
  ++callers_;
  while (!mutex_.AwaitWithTimeout(absl::Condition(&free), kScoreLook)) {
    const absl::Status ended = control.Check();
    if (ended.ok()) continue;
    --callers_;
    return ended;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ScoreResult> TextScores::ScoreForAudit(const v1::ScoreRequest& request,
                                                          CallControl& control) {
  {
    absl::MutexLock lock(&mutex_);
    if (callers_ > 0) return absl::ResourceExhaustedError("a caller's text is being scored");
    auditing_ = true;
  }
  v1::ScoreResult result;
  const absl::Status scored = backends_.Score(request, control, [&](v1::ScoreResponse& message) {
    if (message.has_result()) result = message.result();
    return true;
  });
  absl::MutexLock lock(&mutex_);
  auditing_ = false;
  WITHY_RETURN_IF_ERROR(scored);
  return result;
}

// The worker scores one text at a time and refuses others, and harnesses send several at once.
bool TextScores::AwaitTurn(CallControl& control) {
  const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !tokens_wanted_; };
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&free), kScoreLook)) {
    if (!control.Check().ok()) return false;
  }
  tokens_wanted_ = true;
  return true;
}

absl::StatusOr<std::vector<v1::Token>> TextScores::Tokens(const Caller& caller,
                                                          v1::ScoreRequest request,
                                                          CallControl& control) {
  if (!AwaitTurn(control)) return control.Check();
  request.set_report_tokens(true);
  std::vector<v1::Token> tokens;
  const absl::Status scored =
      Score(caller, request, control, [&](const v1::ScoreResponse& response) {
        tokens.insert(tokens.end(), response.tokens().begin(), response.tokens().end());
        return true;
      });
  EndTurn();
  WITHY_RETURN_IF_ERROR(scored);
  return tokens;
}

}  // namespace withy::orchestrator
