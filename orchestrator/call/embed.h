// LlmService.Embed: checks the request and hands it to model_worker, which gives texts their
// vectors beside its calls; charges the app with what was computed. Neighbours: validate.h checks
// fields, service.cc speaks gRPC, openai/embeddings/ the HTTP API.
#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
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
class TextEmbeddings {
 public:
  // Calls at the same time, each on a thread of its caller's.
  static constexpr uint32_t kMostCalls = 16;

  TextEmbeddings(AppRecords& apps, Backends& backends, Workers& workers, BoardWatch& board,
                 AppBudgets& budgets, Refusals& refusals)
      : apps_(apps),
        backends_(backends),
        workers_(workers),
        board_(board),
        budgets_(budgets),
        refusals_(refusals) {}

  // Blocks until all texts have their vectors; `on_message` gets the worker's messages and returns
  // false when nobody reads any more. Errors: of ValidateEmbed, AppBudgets::Begin and
  // ModelWorker.Embed; RESOURCE_EXHAUSTED (kMostCalls are there), UNIMPLEMENTED for the draft.
  absl::Status Embed(const std::string& app_id, const v1::EmbedRequest& request,
                     CallControl& control,
                     const std::function<bool(const v1::EmbedResponse&)>& on_message);

 private:
  using Sink = std::function<bool(const v1::EmbedResponse&)>;

  absl::Status EmbedFor(const std::string& app_id, const v1::EmbedRequest& request,
                        CallControl& control, const Sink& on_message);
  absl::Status EmbedOnWorker(const std::string& app, const v1::EmbedRequest& request,
                             CallControl& control, const Sink& on_message);

  AppRecords& apps_;
  Backends& backends_;
  Workers& workers_;
  BoardWatch& board_;
  AppBudgets& budgets_;
  Refusals& refusals_;
  absl::Mutex mutex_;
  uint32_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace withy::orchestrator
