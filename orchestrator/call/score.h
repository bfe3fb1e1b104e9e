// LlmService.Score: checks the request and hands it to model_worker, which scores the text when no
// call needs the cores; charges the app with what was computed. Neighbours: validate.h checks
// fields, service.cc speaks gRPC.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "orchestrator/app_records.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/board/board_watch.h"
#include "orchestrator/board/workers.h"
#include "orchestrator/call/app_budgets.h"
#include "orchestrator/call/call_control.h"
#include "orchestrator/call/refusals.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Thread-safe. Borrows its parts.
class TextScores {
 public:
  TextScores(AppRecords& apps, Backends& backends, Workers& workers, BoardWatch& board,
             AppBudgets& budgets, Refusals& refusals)
      : apps_(apps),
        backends_(backends),
        workers_(workers),
        board_(board),
        budgets_(budgets),
        refusals_(refusals) {}

  // Blocks until the text is scored; `on_message` returns false when nobody reads any more. Errors:
  // of AppRecords::Authenticate, AppBudgets::Begin and ModelWorker.Score; UNIMPLEMENTED for the
  // draft.
  absl::Status Score(const Caller& caller, const v1::ScoreRequest& request, CallControl& control,
                     const std::function<bool(const v1::ScoreResponse&)>& on_message);
  // The tokens of a text with their log-probabilities, but for the first one where nothing precedes
  // the text; none for a text of one token. Waits for its turn. `request` has no prompt. Errors: as
  // above.
  absl::StatusOr<std::vector<v1::Token>> Tokens(const Caller& caller, v1::ScoreRequest request,
                                                CallControl& control);
  // Scores a text for an audit, which callers wait for and which waits for none of them. Errors:
  // RESOURCE_EXHAUSTED while a caller's text is there; of ModelWorker.Score.
  absl::StatusOr<v1::ScoreResult> ScoreForAudit(const v1::ScoreRequest& request,
                                                CallControl& control);

 private:
  using Sink = std::function<bool(const v1::ScoreResponse&)>;

  absl::Status ScoreFor(const std::string& app_id, const v1::ScoreRequest& request,
                        CallControl& control, const Sink& on_message);
  absl::Status ScoreOnWorker(const v1::ScoreRequest& request, CallControl& control,
                             const Sink& on_message);
  // Until no audit's text is scored. Errors: as CallControl::Check.
  absl::Status AwaitAudit(CallControl& control);
  bool AwaitTurn(CallControl& control);
  void EndTurn() {
    absl::MutexLock lock(&mutex_);
    tokens_wanted_ = false;
  }

  AppRecords& apps_;
  Backends& backends_;
  Workers& workers_;
  BoardWatch& board_;
  AppBudgets& budgets_;
  Refusals& refusals_;
  absl::Mutex mutex_;
  bool tokens_wanted_ ABSL_GUARDED_BY(mutex_) = false;  // a call of Tokens has its turn
  uint32_t callers_ ABSL_GUARDED_BY(mutex_) = 0;        // whose texts are scored, or wait
  bool auditing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace withy::orchestrator
