#include "orchestrator/call/embed.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "orchestrator/call/validate.h"
#include "policy/constants.h"
#include "rpc/error_reason.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

constexpr double kMillijoulesInJoule = 1000;

}  // namespace

absl::Status TextEmbeddings::Embed(const std::string& app_id, const v1::EmbedRequest& request,
                                   CallControl& control, const Sink& on_message) {
  const absl::Status embedded = EmbedFor(app_id, request, control, on_message);
  refusals_.Tell({.method = "Embed", .app_id = app_id}, embedded);
  return embedded;
}

absl::Status TextEmbeddings::EmbedFor(const std::string& app_id, const v1::EmbedRequest& request,
                                      CallControl& control, const Sink& on_message) {
  WITHY_RETURN_IF_ERROR(ValidateEmbed(request));
  WITHY_ASSIGN_OR_RETURN(const policy::Lane lane,
                         workers_.FindLane(request.model(), control.deadline()));
  if (lane == policy::Lane::kDraft) {
    return absl::UnimplementedError(
        "model: draft_worker gives no vectors, since it has to draft whenever the target decodes; "
        "leave model empty");
  }
  const std::string app = apps_.NameOf(app_id);
  WITHY_ASSIGN_OR_RETURN(const AppBudgets::Place place, budgets_.Begin(app));
  {
    absl::MutexLock lock(&mutex_);
    if (calls_ >= kMostCalls) {
      return WithReason(
          rpc::WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                                  calls_, " calls wait for vectors of texts: retry later")),
                              policy::kEmbedRetryMs),
          "QUEUE_FULL");
    }
    ++calls_;
  }
  const absl::Status embedded = EmbedOnWorker(app, request, control, on_message);
  absl::MutexLock lock(&mutex_);
  --calls_;
  return embedded;
}

absl::Status TextEmbeddings::EmbedOnWorker(const std::string& app, const v1::EmbedRequest& request,
                                           CallControl& control, const Sink& on_message) {
  const uint64_t charged = RandomId64();
  uint64_t computed_tokens = 0;
  board_.CallBegins(charged, /*yields=*/true);
  const absl::Status embedded =
      backends_.Embed(request, control, [&](const v1::EmbedResponse& message) {
        computed_tokens = std::max(computed_tokens, message.computed_tokens());
        return on_message(message);
      });
  budgets_.Spend(app, computed_tokens, board_.CallEnds(charged) / kMillijoulesInJoule);
  return embedded;
}

}  // namespace withy::orchestrator
