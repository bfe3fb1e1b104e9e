// The orchestrator without the wire: owns its parts and puts them together. service.cc speaks gRPC
// around it. Keeps no state that matters: killing the process loses nothing but what runs.
// Neighbours: app_records.h (apps and contexts), workers.h (models and speed), token_counter.h,
// calls.h (admission), call_registry.h (names of running calls), prepare.h and generate.h (calls).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "orchestrator/board/readiness.h"
#include "orchestrator/call/call_parts.h"
#include "orchestrator/call/embed.h"
#include "orchestrator/call/refusals.h"
#include "orchestrator/call/score.h"
#include "telemetry/recorder.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

struct AnsweringModel {
  policy::Lane lane = policy::Lane::kTarget;
  WorkerInfo worker;  // never null
};

// Thread-safe. Methods may block for as long as the call's deadline allows, but Arrive, Leave,
// Refused and RetryAfterMs; none of the others is for gRPC's own threads. Errors: as
// llm_service.proto says.
class Gateway {
 public:
  // `config` must be filled (base/config.h). Opens the TLM, if there is one.
  Gateway(const v1::Config& config, telemetry::Recorder& recorder, const Clock& clock);

  AppRecords& apps() { return apps_; }
  const TokenCounter& counter() const { return counter_; }
  TextScores& scores() { return scores_; }
  TextEmbeddings& embeddings() { return embeddings_; }
  Readiness& readiness() { return readiness_; }
  const AppBudgets& budgets() const { return budgets_; }

  // Takes a place for a call, or refuses (policy::Admission::Arrive); every call that arrived
  // leaves.
  absl::Status Arrive(const IncomingCall& call);
  void Leave(uint64_t id, const absl::Status& status);
  // A call, of any method, that `status` ended before the gateway had it. Does not block.
  void Refused(RefusedCall call, const absl::Status& status) {
    refusals_.Tell(std::move(call), status);
  }
  // From now on calls are refused; waits until those that arrived have left, at most `grace`.
  void Drain(absl::Duration grace) {
    readiness_.Drain();
    calls_.StopAdmitting();
    calls_.AwaitEmpty(grace);
  }
  // How long a refused caller should wait before it tries again.
  int64_t RetryAfterMs() const;

  // Runs one call that has arrived to its end. `control` is shared with whoever cancels.
  absl::Status Generate(const IncomingCall& call, const v1::GenerateRequest& request,
                        const std::shared_ptr<CallControl>& control, const AnswerSink& sink);
  absl::StatusOr<v1::CancelResponse> Cancel(const std::string& app_id,
                                            const v1::CancelRequest& request, absl::Time deadline);
  // `over`: as IncomingCall's.
  absl::StatusOr<v1::PlanResponse> Plan(const std::string& app_id,
                                        const v1::GenerateRequest& request, absl::Time deadline,
                                        const engine::CancelCheck& over);
  absl::StatusOr<v1::CountTokensResponse> CountTokens(const std::string& app_id,
                                                      const v1::CountTokensRequest& request,
                                                      absl::Time deadline,
                                                      const engine::CancelCheck& over);
  absl::StatusOr<v1::ListModelsResponse> ListModels(absl::Time deadline);
  // The worker that answers calls that name this model ("": the target), as it was asked last:
  // calls notice themselves if it serves another model by now. Errors: NOT_FOUND, UNAVAILABLE.
  absl::StatusOr<AnsweringModel> FindModel(const std::string& model, absl::Time deadline);
  v1::GetStatusResponse GetStatus(absl::Time deadline);
  // The metrics of all processes in Prometheus' text format. Errors: UNAVAILABLE where
  // profiler_agent is away.
  absl::StatusOr<std::string> MetricsText(bool lean, absl::Time deadline);

 private:
  CallParts Parts();
  absl::StatusOr<v1::PlanResponse> PlanFor(const std::string& app_id,
                                           const v1::GenerateRequest& request, absl::Time deadline,
                                           const engine::CancelCheck& over);
  absl::StatusOr<v1::CountTokensResponse> CountFor(const std::string& app_id,
                                                   const v1::CountTokensRequest& request,
                                                   absl::Time deadline,
                                                   const engine::CancelCheck& over);

  const Clock& clock_;
  telemetry::Recorder& recorder_;
  Metrics metrics_;
  Backends backends_;
  AppRecords apps_;
  Refusals refusals_;
  Workers workers_;
  TlmOfModel tlm_;
  TokenCounter counter_;
  CallTable calls_;
  CallRegistry registry_;
  BoardWatch board_;
  AppBudgets budgets_;
  TextScores scores_;
  TextEmbeddings embeddings_;
  // These use the others.
  const std::unique_ptr<Auditor> auditor_;  // null: none
  const std::unique_ptr<Prober> prober_;    // null: none
  Readiness readiness_;
};

}  // namespace withy::orchestrator
