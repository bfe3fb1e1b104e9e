// The processes behind the orchestrator, as blocking calls with deadlines. The one place here that
// holds gRPC clients. Neighbours: gateway.cc and generate.cc call it on threads that may block.
// Keeps no state but channels.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/tokenizer/cancel.h"
#include "orchestrator/call/call_control.h"
#include "orchestrator/call/calls.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/llm_service.pb.h"
#include "withy/v1/model_worker.pb.h"
#include "withy/v1/profiler.pb.h"

namespace withy::orchestrator {

// Most a short call may take, and how long it waits for a process that is not there.
inline constexpr absl::Duration kShortCall = absl::Seconds(10);
inline constexpr absl::Duration kStatusCall = absl::Milliseconds(500);
// How long a call waits for a worker that died before its first token.
inline constexpr absl::Duration kRestartWait = absl::Seconds(10);

// Thread-safe. Every call ends by `deadline` and by its own limit. UNAVAILABLE errors name the
// process, its address and the remedy; other errors are the process's own. A retry hint of the
// process is kept (rpc::RetryAfterMs).
class Backends {
 public:
  explicit Backends(const v1::Config& config);
  ~Backends();

  template <typename Response>
  using Result = absl::StatusOr<Response>;

  // context_store
  Result<v1::BindAppResponse> BindApp(const v1::StoreBindAppRequest& request, absl::Time deadline);
  Result<v1::AuthenticateAppResponse> AuthenticateApp(const v1::AuthenticateAppRequest& request,
                                                      absl::Time deadline);
  Result<v1::CreateContextResponse> CreateContext(const v1::StoreCreateContextRequest& request,
                                                  absl::Time deadline);
  Result<v1::GetContextResponse> GetContext(const v1::StoreGetContextRequest& request,
                                            absl::Time deadline);
  Result<v1::ListContextsResponse> ListContexts(const v1::StoreListContextsRequest& request,
                                                absl::Time deadline);
  Result<v1::DeleteContextResponse> DeleteContext(const v1::StoreDeleteContextRequest& request,
                                                  absl::Time deadline);
  Result<v1::FindResultResponse> FindResult(const v1::FindResultRequest& request,
                                            absl::Time deadline);
  // Without waiting for a process that is not there.
  Result<v1::GetStoreInfoResponse> StoreInfo(absl::Time deadline);

  // Without waiting for a worker that is not there: what it knew has gone with it.
  Result<v1::ForgetContextResponse> ForgetContext(const v1::ForgetContextRequest& request,
                                                  absl::Time deadline);

  // model_worker and draft_worker. `wait`: for a worker that is not there, within the limits.
  // CANCELLED once `over` (empty: never) holds, which is asked meanwhile.
  Result<v1::TokenizeResponse> Tokenize(policy::Lane lane, const v1::TokenizeRequest& request,
                                        absl::Time deadline, const engine::CancelCheck& over);
  Result<v1::GetWorkerInfoResponse> WorkerInfo(policy::Lane lane, absl::Time deadline, bool wait);
  // Runs one call; `on_event` sees every message in order and returns false to stop (the call is
  // then broken off). control.Stop() ends the answer meanwhile, and what there is of it comes as
  // its end.
  absl::Status Run(policy::Lane lane, const v1::RunRequest& request, CallControl& control,
                   const std::function<bool(v1::RunResponse&)>& on_event);
  // Scores one text by model_worker; as Run.
  absl::Status Score(const v1::ScoreRequest& request, CallControl& control,
                     const std::function<bool(v1::ScoreResponse&)>& on_event);
  // Vectors of texts by model_worker; as Run.
  absl::Status Embed(const v1::EmbedRequest& request, CallControl& control,
                     const std::function<bool(v1::EmbedResponse&)>& on_event);
  // Waits until the worker can be talked to. False when it could not by `deadline`, or the call was
  // cancelled.
  bool WaitForWorker(policy::Lane lane, absl::Time deadline, CallControl& control);

  // profiler_agent
  Result<v1::GetProfilerInfoResponse> ProfilerInfo(absl::Time deadline);
  // The metrics of all processes.
  Result<v1::GetMetricsResponse> Metrics(const v1::GetMetricsRequest& request, absl::Time deadline);
  // Does not wait. What the agent does not take soon is lost.
  void ReportCall(v1::CallReport report);

  // Whether calls wait for the process while it is not there; they do at first.
  void SetPatience(std::string_view process, bool waits);
  // What the process's health service says: "serving", "not serving" or "unreachable".
  std::string Health(std::string_view process, absl::Time deadline);

 private:
  struct Clients;
  std::unique_ptr<Clients> clients_;
};

// "model_worker" or "draft_worker".
std::string_view ProcessOf(policy::Lane lane);

}  // namespace withy::orchestrator
