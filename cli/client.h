// A command's view of the service: address, token, and one method per RPC. All of withyctl's gRPC
// is behind it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/flags.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/llm_service.pb.h"
#include "withy/v1/model_worker.pb.h"
#include "withy/v1/profiler.pb.h"

namespace withy::cli {

// Cancels a running answer from another thread.
class AnswerCancel {
 public:
  AnswerCancel();
  ~AnswerCancel();
  // If the answer has begun, asks the service to end it and keeps the text until then. Before that,
  // or at the second call, breaks off the call.
  void Cancel();

 private:
  friend class Client;
  struct State;
  std::shared_ptr<State> state_;
};

// Every method blocks and has a deadline. Errors include the remedy: how to start the service, how
// to get a token. Used by one thread; Cancel by any.
class Client {
 public:
  // Address: --address, WITHY_ADDRESS, else the configuration's. Token: --token, the stored token
  // of
  // --app, WITHY_TOKEN, else the token stored last. Errors: of the configuration; INVALID_ARGUMENT
  // (an invalid token, or both flags), as ReadToken().
  static absl::StatusOr<std::unique_ptr<Client>> Open(const Args& args);
  ~Client();

  // Applies to later calls. Errors: INVALID_ARGUMENT if the token cannot be sent; `source` tells
  // where it came from.
  absl::Status UseToken(const std::string& token, const std::string& source);

  absl::StatusOr<v1::BindAppResponse> BindApp(const v1::BindAppRequest& request);
  absl::StatusOr<v1::CreateContextResponse> CreateContext(const v1::CreateContextRequest& request);
  absl::StatusOr<v1::GetContextResponse> GetContext(const v1::GetContextRequest& request);
  absl::StatusOr<v1::ListContextsResponse> ListContexts(const v1::ListContextsRequest& request);
  absl::StatusOr<v1::DeleteContextResponse> DeleteContext(const v1::DeleteContextRequest& request);
  absl::StatusOr<v1::CountTokensResponse> CountTokens(const v1::CountTokensRequest& request);
  absl::StatusOr<v1::PlanResponse> Plan(const v1::GenerateRequest& request);
  absl::StatusOr<v1::CancelResponse> Cancel(const v1::CancelRequest& request);
  absl::StatusOr<v1::ListModelsResponse> ListModels();
  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  // Errors also: DEADLINE_EXCEEDED, naming --timeout-s.
  absl::Status Generate(const v1::GenerateRequest& request, absl::Duration timeout,
                        AnswerCancel* cancel,
                        const std::function<void(const v1::GenerateResponse&)>& on_message);

  // Errors as Generate.
  absl::Status Score(const v1::ScoreRequest& request, absl::Duration timeout,
                     const std::function<void(const v1::ScoreResponse&)>& on_message);
  absl::Status Embed(const v1::EmbedRequest& request, absl::Duration timeout,
                     const std::function<void(const v1::EmbedResponse&)>& on_message);

  // RPCs of context_store itself: for the operator, on the board.
  absl::StatusOr<v1::ListAppsResponse> ListApps();
  absl::StatusOr<v1::GetStoreInfoResponse> GetStoreInfo();
  absl::StatusOr<v1::BindAppResponse> RenewApp(const std::string& app);
  absl::StatusOr<v1::RemoveAppResponse> RemoveApp(const v1::RemoveAppRequest& request);
  absl::StatusOr<v1::RotateMasterKeyResponse> RotateMasterKey();
  absl::StatusOr<v1::BeginBackupResponse> BeginBackup(const v1::BeginBackupRequest& request);
  absl::StatusOr<v1::EndBackupResponse> EndBackup(const v1::EndBackupRequest& request);

  // RPCs of model_worker: likewise. `on_progress` may be called many times. UseModel returns once
  // the worker has begun to change.
  absl::Status UseModel(const v1::UseModelRequest& request,
                        const std::function<void(const v1::UseModelResponse&)>& on_progress);
  // Does not wait for a worker that is away. Errors: UNAVAILABLE.
  absl::StatusOr<v1::GetWorkerInfoResponse> GetWorkerInfo();

  // RPCs of profiler_agent: likewise.
  absl::StatusOr<v1::GetPhasesResponse> GetPhases(const v1::GetPhasesRequest& request);
  absl::StatusOr<v1::ListCallsResponse> ListCalls(const v1::ListCallsRequest& request);
  absl::StatusOr<v1::ExplainCallResponse> ExplainCall(const v1::ExplainCallRequest& request);
  absl::StatusOr<v1::GetSpansResponse> GetSpans(const v1::GetSpansRequest& request);
  // `take` ends the capture early by returning false; that is OK, too.
  absl::Status CaptureTimeline(const v1::CaptureTimelineRequest& request,
                               const std::function<bool(const v1::CaptureTimelineResponse&)>& take);
  // For `length`, or until `take` returns false.
  absl::Status WatchSpans(const v1::WatchSpansRequest& request, absl::Duration length,
                          const std::function<bool(const v1::WatchSpansResponse&)>& take);

 private:
  Client();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace withy::cli
