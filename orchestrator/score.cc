#include "orchestrator/score.h"

#include "base/status.h"
#include "orchestrator/validate.h"

namespace withy::orchestrator {

absl::Status TextScores::Score(const std::string& token, const v1::ScoreRequest& request,
                               CallControl& control,
                               const std::function<bool(const v1::ScoreResponse&)>& on_message) {
  WITHY_RETURN_IF_ERROR(control.Check());  // it may have waited for another text
  WITHY_RETURN_IF_ERROR(apps_.Authenticate(token, control.deadline()).status());
  WITHY_RETURN_IF_ERROR(ValidateScore(request));
  WITHY_ASSIGN_OR_RETURN(const policy::Lane lane,
                         workers_.FindLane(request.model(), control.deadline()));
  if (lane == policy::Lane::kDraft) {
    return absl::UnimplementedError(
        "model: draft_worker scores no texts, since it has to draft whenever the target decodes; "
        "leave model empty, or compare files with `withyctl score FILE --model A --against B`");
  }
  return backends_.Score(request, control, on_message);
}

}  // namespace withy::orchestrator
