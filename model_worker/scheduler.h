// Continuous batching: one engine thread that runs the calls of all apps in shared steps. Calls
// join, finish and cancel between steps; a prompt with a deadline does not wait for the end of a
// step, which is left in its middle, and gone on with once the prompt's own step is done.
// Neighbours: policy/step_plan.h decides, session.h holds a call's state, lease.h brings blocks,
// call.h is told. Knows no gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/session/cost_probe.h"
#include "model_worker/call.h"
#include "model_worker/draft_source.h"
#include "model_worker/lease.h"
#include "model_worker/request_names.h"
#include "model_worker/session.h"
#include "model_worker/task_thread.h"
#include "model_worker/worker_metrics.h"
#include "policy/call_order.h"
#include "policy/pace.h"
#include "policy/prompt_level.h"
#include "policy/step_learner.h"
#include "policy/step_plan.h"

namespace withy::model_worker {

struct SchedulerOptions {
  int32_t max_batch = 8;     // calls that run at once
  int32_t queue_limit = 64;  // calls that wait
  int32_t prefill_piece_ms = 50;
  int32_t max_piece_rows = 256;
  absl::Duration commit_grace = absl::Seconds(5);  // for commits at the end of a drain
  // Of each of the model's levels, by which calls fall to lower ones. Empty: guessed from the cost
  // of the full model, the operations and the bytes of each level.
  std::vector<policy::LevelPace> paces = {};
  // Asked before every decode step of a call; null: plain decoding. Outlives the scheduler.
  DraftSource* drafts = nullptr;
};

struct SchedulerLoad {
  size_t running = 0;
  size_t queued = 0;
  size_t queue_limit = 0;
  int64_t pending_prefill_tokens =
      0;  // of running and waiting calls; those waiting are estimated by their bytes
};

// Everything passed in is borrowed and outlives it. Public methods may be called from any thread
// but the sinks' and lease events' own callbacks return at once. Always: a session is touched by
// one thread at a time (engine thread, or the office thread while it is being made or committed);
// rows are computed only for calls whose lease is whole.
class Scheduler {
 public:
  // Names a call from Submit to its end.
  using Ticket = uint64_t;

  Scheduler(engine::Model& model, const SessionEnv& env, LeaseSource& leases,
            const engine::StepCost& cost, const SchedulerOptions& options, Clock& clock,
            telemetry::Recorder& recorder);
  // Cancels what runs.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a validated call. Errors: RESOURCE_EXHAUSTED naming the bound and the position,
  // UNAVAILABLE while draining, ABORTED when the app's call of the same request_id is still here,
  // or its answer was stored just now. After an error the sink is not called.
  absl::StatusOr<Ticket> Submit(CallRequest request, std::shared_ptr<CallSink> sink);
  // Computes a context's KV again at the full level, as long as no call comes: then it is given up
  // and nothing has changed. The sink hears Finished, or Failed with ABORTED (a call came) or the
  // error, UNAVAILABLE while draining.
  void SubmitRebuild(const std::string& app_id, const std::string& context_id,
                     std::shared_ptr<CallSink> sink);
  // Returns once there has been no call for `quiet`, and, when `*calls_seen` calls have been
  // submitted in all, not before the next one has come and gone; sets `*calls_seen`. False: no more
  // calls are taken.
  bool AwaitQuiet(absl::Duration quiet, uint64_t* calls_seen);
  // Both stop a call within one step, and commit what it answered so far, marked; a call without an
  // answer leaves nothing in the record, but the KV that it computed, so that its retry goes on
  // from there, and fails.
  //
  // Cancel: the caller wants what there is of the answer, which becomes its result. BreakOff: the
  // caller is gone, or cannot be served any longer, which `why` says: the call fails, and what is
  // committed is no result, but goes when its request_id is answered.
  void Cancel(Ticket ticket);
  void BreakOff(Ticket ticket, absl::Status why);
  // Cancels by RunRequest.call_id. `done` hears, from the engine thread, whether there is such a
  // call.
  void CancelCall(uint64_t call_id, std::function<void(bool found)> done);

  // Ends every call that has a lease with `status`, and returns when nothing of their blocks is
  // read or written any more.
  void FailLeases(const absl::Status& status);
  // Refuses new calls, lets those there finish for `grace`, cancels the rest, and fails those that
  // the store does not commit in time.
  void Drain(absl::Duration grace);

  SchedulerLoad load() const;
  // False when a step or another piece of the engine thread's work has taken implausibly long.
  bool MakesProgress() const;
  // How long it has taken so far; 0 while the engine thread waits.
  int64_t PieceNanos() const;

 private:
  enum class Phase { kWaiting, kOpening, kRunning, kCommitting };
  struct Call;
  struct Batch;
  struct Link;
  class Events;

  void Run();
  void Post(Task task);
  void PostLocked(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RunPosted(absl::Duration wait);
  bool HasPosted() const;
  absl::Duration IdleWait() const;

  Call* Find(Ticket ticket);
  void Enqueue(std::unique_ptr<Call> call);
  void StopNow(Ticket ticket, const absl::Status& why);
  void CancelRebuilds();
  void StartCalls();
  void Open(Call& call);
  // Ends early once `over` holds: the call is no more.
  void Prepare(Ticket ticket, std::shared_ptr<const std::atomic<bool>> over, CallRequest request,
               std::shared_ptr<Lease> lease, OpenedLease opened);
  void OnPrepared(Ticket ticket, const std::shared_ptr<Session>& session, int64_t opened_ns);
  void OnClaimed(Ticket ticket, std::vector<ChunkBlocks> chunks, const std::string& refused);
  void OnBroken(Ticket ticket, const absl::Status& status);
  void OnCommitted(Ticket ticket);

  bool Step();
  bool GiveWay();
  std::unique_ptr<Batch> PlanBatch();
  bool Compute(Batch& batch, std::vector<float>& logits, const std::atomic<bool>* stop);
  bool RunPass(Batch& batch, const std::atomic<bool>* stop, double until);
  bool NeedsWatch(const Batch& batch, int64_t now_ns) const;
  bool RestartsAtLowerLevel(Batch& batch);
  void AfterStep(const Batch& batch, std::span<const float> logits);
  bool UnderWay(const Call& call) const;
  void FlushWhoWaits(const Batch& next);
  void UpdatePause(Call& call, int64_t now_ns);
  policy::StepCall StepCallOf(const Call& call) const;
  bool TakeTokens(Call& call, std::span<const float> logits);
  void GoOn(Call& call);
  void DraftNext(Call& call);
  void ClaimAhead(Call& call);
  static policy::PromptTurn PromptOf(const Call& call, size_t level);
  void KeepPace(Call& call);
  void LowerLevel(Call& call, size_t from, size_t to);
  std::optional<size_t> LevelOf(const Call& call) const;
  void DropStalled();

  void Commit(Call& call);
  void Fail(Call& call, const absl::Status& status);
  void EndName(const Call& call, bool stored);
  void Erase(Ticket ticket);
  void PublishLoad();

  engine::Model& model_;
  const SessionEnv env_;
  LeaseSource& leases_;
  const SchedulerOptions options_;
  Clock& clock_;
  WorkerMetrics metrics_;

  mutable absl::Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  SchedulerLoad load_ ABSL_GUARDED_BY(mutex_);
  size_t admitted_ ABSL_GUARDED_BY(mutex_) = 0;  // calls from Submit to their end, rebuilds aside
  uint64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;  // in all
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  RequestNames names_ ABSL_GUARDED_BY(mutex_);  // of the calls from Submit to their end
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> busy_since_ns_{0};  // 0 = the engine thread waits
  std::atomic<bool> stop_step_{false};     // somebody left word: the step under way is left

  // The engine thread's own.
  std::map<Ticket, std::unique_ptr<Call>> calls_;
  std::unique_ptr<Batch> under_way_;  // the step that has begun and is not over
  // What has to wait until it is over: a step's blocks stay where they are.
  std::vector<Task> after_step_;
  const size_t vocab_;
  std::vector<float> logits_;          // [rows that want logits, vocab], of the step under way
  std::vector<float> between_logits_;  // the same of a step in between
  const std::vector<policy::LevelPace> paces_;
  policy::StepLearner learner_;

  std::shared_ptr<Link> link_;  // how lease events find this object, as long as it is there
  TaskThread office_;           // encodes, names and hashes, so that steps do not wait for it
  std::thread engine_thread_;
};

}  // namespace withy::model_worker
