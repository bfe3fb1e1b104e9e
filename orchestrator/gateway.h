// What the orchestrator does, without the wire: authenticates, validates, decides, forwards. Owns
// the parts; service.cc speaks gRPC around it. Keeps no state that matters: killing it loses
// nothing but what runs. Neighbours: backends.h (the other processes), calls.h (admission),
// prepare.cc (decisions).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "engine/encoder/prune.h"
#include "orchestrator/auditor.h"
#include "orchestrator/auth_cache.h"
#include "orchestrator/backends.h"
#include "orchestrator/call_control.h"
#include "orchestrator/calls.h"
#include "orchestrator/decide.h"
#include "orchestrator/latency_model.h"
#include "orchestrator/metrics.h"
#include "orchestrator/prober.h"
#include "orchestrator/prompt_counter.h"
#include "orchestrator/tlm_reader.h"
#include "telemetry/recorder.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// A Generate call as it arrived.
struct IncomingCall {
  uint64_t id = 0;         // of CallTable::Arrive
  int64_t arrived_ns = 0;  // steady clock
  std::string token;       // of the authorization metadata
  // Whether nobody waits for it any more; asked while its prompt is encoded. Empty: never.
  engine::CancelCheck over = nullptr;
};

// As GenerateStarted.call_id and the logs name it.
std::string CallName(uint64_t id);

// Takes one message of the answer; false when nobody reads any more.
using AnswerSink = std::function<bool(v1::GenerateResponse)>;

// What a worker is to keep of a prompt; nothing for all of it.
void FillKept(const engine::PrunedPrompt& pruned,
              google::protobuf::RepeatedPtrField<v1::KeptSpans>* wire);

// Thread-safe. Every method may block for as long as the call's deadline allows; none is for gRPC's
// own threads.
class Gateway {
 public:
  // `config` must be filled (base/config.h). Opens the TLM, if there is one.
  Gateway(const v1::Config& config, telemetry::Recorder& recorder, const Clock& clock);

  // Takes a place for a call, or refuses (CallTable::Arrive); every call that arrived leaves.
  // Neither blocks.
  absl::Status Arrive(uint64_t id);
  void Leave(uint64_t id, const absl::Status& status);
  // From now on calls are refused; waits until those that arrived have left, at most `grace`.
  void Drain(absl::Duration grace) {
    calls_.StopAdmitting();
    calls_.AwaitEmpty(grace);
  }

  // Errors: UNAUTHENTICATED, UNAVAILABLE.
  absl::StatusOr<std::string> Authenticate(std::string_view token, absl::Time deadline);

  // Errors of all: as llm_service.proto says.
  // `current_token` came with the call; it renews its app's token.
  absl::StatusOr<v1::BindAppResponse> BindApp(const v1::BindAppRequest& request,
                                              std::string_view current_token, absl::Time deadline);
  absl::StatusOr<v1::CreateContextResponse> CreateContext(const std::string& app_id,
                                                          const v1::CreateContextRequest& request,
                                                          absl::Time deadline);
  absl::StatusOr<v1::GetContextResponse> GetContext(const std::string& app_id,
                                                    const v1::GetContextRequest& request,
                                                    absl::Time deadline);
  absl::StatusOr<v1::ListContextsResponse> ListContexts(const std::string& app_id,
                                                        const v1::ListContextsRequest& request,
                                                        absl::Time deadline);
  absl::StatusOr<v1::DeleteContextResponse> DeleteContext(const std::string& app_id,
                                                          const v1::DeleteContextRequest& request,
                                                          absl::Time deadline);
  // `over`: as IncomingCall's, here and in Plan.
  absl::StatusOr<v1::CountTokensResponse> CountTokens(const std::string& app_id,
                                                      const v1::CountTokensRequest& request,
                                                      absl::Time deadline,
                                                      const engine::CancelCheck& over);
  absl::StatusOr<v1::ListModelsResponse> ListModels(absl::Time deadline);
  absl::StatusOr<v1::PlanResponse> Plan(const std::string& app_id,
                                        const v1::GenerateRequest& request, absl::Time deadline,
                                        const engine::CancelCheck& over);
  v1::GetStatusResponse GetStatus(absl::Time deadline);

  // Runs one call that has arrived to its end. `control` is shared with whoever cancels.
  absl::Status Generate(const IncomingCall& call, const v1::GenerateRequest& request,
                        const std::shared_ptr<CallControl>& control, const AnswerSink& sink);
  absl::StatusOr<v1::CancelResponse> Cancel(const std::string& app_id,
                                            const v1::CancelRequest& request, absl::Time deadline);

  // How long a refused caller should wait before it tries again.
  int64_t RetryAfterMs() const;

 private:
  friend class GenerateCall;
  friend class Preparation;

  using WorkerInfo = std::shared_ptr<const v1::GetWorkerInfoResponse>;

  // Everything about a call that is known before it runs.
  struct Prepared {
    Lane lane = Lane::kTarget;
    WorkerInfo worker;
    CostParameters cost;
    v1::TokenizeResponse tokens;
    CallShape shape;              // at the decided levels
    Prediction predicted;         // likewise
    engine::PrunedPrompt pruned;  // `kept` is empty: the whole prompt
    QueueKey key;
    CallDemand demand;    // as other calls see it
    SloTargets judged{};  // what the measured latency is held against
    v1::Decision decision;
    double tlm_ms = 0;  // that reading and shortening the prompt took; 0 = not done
    uint32_t queue_position = 0;
  };
  // App and request_id of a call. One answer at a time is made for each: false = it is being made.
  using RequestName = std::pair<std::string, std::string>;
  bool BeginRequest(const RequestName& name);
  void EndRequest(const RequestName& name);
  // A call of an app that is being answered, for Cancel.
  struct RunningCall {
    std::string app_id;
    std::string request_id;
    std::shared_ptr<CallControl> control;
  };
  class CancelScope {
   public:
    CancelScope(Gateway& gateway, uint64_t id, RunningCall call) : gateway_(gateway), id_(id) {
      absl::MutexLock lock(&gateway_.mutex_);
      gateway_.running_.emplace(id, std::move(call));
    }
    ~CancelScope() {
      absl::MutexLock lock(&gateway_.mutex_);
      gateway_.running_.erase(id_);
    }
    CancelScope(const CancelScope&) = delete;
    CancelScope& operator=(const CancelScope&) = delete;

   private:
    Gateway& gateway_;
    const uint64_t id_;
  };

  absl::StatusOr<Prepared> Prepare(const std::string& app_id, const v1::GenerateRequest& request,
                                   const IncomingCall& call, absl::Time deadline);
  absl::StatusOr<Lane> FindLane(const std::string& model, absl::Time deadline);
  // `worker`: that will run the call; null: not known.
  absl::StatusOr<v1::TokenizeResponse> CountCall(Lane lane, const WorkerInfo& worker,
                                                 const std::string& app_id,
                                                 const v1::GenerateRequest& request,
                                                 absl::Time deadline,
                                                 const engine::CancelCheck& over,
                                                 const engine::PrunedPrompt* pruned = nullptr);
  // Cached for a moment. `wait`: for a worker that is not there.
  absl::StatusOr<WorkerInfo> GetWorkerInfo(Lane lane, absl::Time deadline, bool wait = true);
  // As the last call found it, however long ago; null: not asked yet, or gone since.
  WorkerInfo LastWorkerInfo(Lane lane) const;
  void ForgetWorker(Lane lane);
  LiveCorrection live(Lane lane) const;
  void LearnFrom(Lane lane, const CostParameters& cost, const Observation& seen);

  // Around a call that is given to a worker.
  class RunsGuard {
   public:
    explicit RunsGuard(Prober* prober) : prober_(prober) {
      if (prober_ != nullptr) prober_->Starts();
    }
    ~RunsGuard() {
      if (prober_ != nullptr) prober_->Ends();
    }
    RunsGuard(const RunsGuard&) = delete;
    RunsGuard& operator=(const RunsGuard&) = delete;

   private:
    Prober* const prober_;
  };

  struct CachedWorker {
    WorkerInfo info;
    int64_t expires_ns = 0;
  };

  const Clock& clock_;
  telemetry::Recorder& recorder_;
  Metrics metrics_;
  Backends backends_;
  CallTable calls_;
  const std::unique_ptr<TlmReader> tlm_;          // null: none
  const std::unique_ptr<PromptCounter> counter_;  // null: the worker counts
  AuthCache auth_;
  mutable absl::Mutex mutex_;
  std::array<CachedWorker, kLanes> workers_ ABSL_GUARDED_BY(mutex_);
  std::array<LiveCorrection, kLanes> live_ ABSL_GUARDED_BY(mutex_);
  std::array<std::string, kLanes> costs_
      ABSL_GUARDED_BY(mutex_);  // that live_ corrects, on the wire
  std::set<RequestName> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, RunningCall> running_ ABSL_GUARDED_BY(mutex_);  // by the call's id
  // These use the others.
  const std::unique_ptr<Auditor> auditor_;  // null: none
  const std::unique_ptr<Prober> prober_;    // null: none
};

}  // namespace withy::orchestrator
