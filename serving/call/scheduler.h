// Continuous batching: one engine thread that runs the calls of all apps in shared steps. Calls
// join, finish and cancel between steps; a prompt with a deadline does not wait for the end of a
// step, which is left in its middle and resumed once the prompt's own step is done. Neighbours:
// call_registry.h admits calls, call_lifecycle.h runs them on the engine thread, call.h is told.
// Knows no gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/session/cost_probe.h"
#include "serving/call/call.h"
#include "serving/call/call_lifecycle.h"
#include "serving/call/call_registry.h"
#include "serving/call/idle_scorer.h"
#include "serving/call/scheduler_options.h"
#include "serving/call/task_inbox.h"
#include "serving/call/worker_metrics.h"
#include "serving/embedding/idle_embedder.h"
#include "serving/session/lease.h"
#include "serving/session/session.h"

namespace withy::serving {

// Everything passed in is borrowed and outlives it. Public methods may be called from any thread,
// but from the callbacks of sinks and leases only those that return at once.
class Scheduler {
 public:
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
  // Computes a context's KV again at the full level. A call that comes ends it, and nothing has
  // changed. The sink hears Finished, or Failed with ABORTED (a call came), UNAVAILABLE while
  // draining, or the error.
  void SubmitRebuild(const std::string& app_id, const std::string& context_id,
                     const std::shared_ptr<CallSink>& sink);
  // Returns true once there has been no call for `quiet`; when `*calls_seen` calls have been
  // submitted in all, not before the next one has come and gone. Sets `*calls_seen` to the calls
  // submitted so far. False: no more calls are taken.
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

  // Forgets what was said in a context that was deleted, or, where `context_id` is empty, by an app
  // (Speculator::ForgetContext). `done` is called from the engine thread once that is so.
  void ForgetContext(std::string app_id, std::string context_id, std::function<void()> done);

  // Scores a text when no call has anything to compute. The sink hears its end: also
  // RESOURCE_EXHAUSTED while another text is scored, CANCELLED once it has left, UNAVAILABLE while
  // draining.
  void Score(std::unique_ptr<engine::TextScorer> scorer, std::shared_ptr<ScoreSink> sink);

  // Gives texts their vectors: at once when no call has anything to compute, else a little between
  // steps. The sink hears its end: also RESOURCE_EXHAUSTED while too many wait, CANCELLED once it
  // has left, UNAVAILABLE while draining.
  void Embed(std::unique_ptr<TextEmbedder> embedder, std::shared_ptr<EmbedSink> sink);

  // Ends every call that has a lease with `status`, and returns when nothing of their blocks is
  // read or written any more.
  void FailLeases(const absl::Status& status);
  // Refuses new calls, and fails those there with `status`; nothing of their answers is committed.
  void Abandon(const absl::Status& status);
  // Refuses new calls, lets those there finish for `grace`, cancels the rest, and fails those that
  // the store does not commit in time.
  void Drain(absl::Duration grace);

  SchedulerLoad load() const { return registry_.load(); }
  // As RunResponse.board_slowdown.
  double board_slowdown() const { return metrics_.board_slowdown(); }
  // False when a step or another piece of the engine thread's work has taken implausibly long.
  bool MakesProgress() const;
  // How long it has taken so far; 0 while the engine thread waits.
  int64_t PieceNanos() const { return inbox_.BusyNanos(); }

 private:
  void RunEngineThread();
  // Of the engine thread: of texts that are scored or get vectors.
  void CloseTexts(const absl::Status& status);
  // Lets the model rest once nothing was computed for long enough; returns the time until then.
  absl::Duration RestIfIdle(bool computed);

  engine::Model& model_;
  Clock& clock_;
  const absl::Duration rest_after_;
  int64_t computed_ns_ = 0;  // when something was computed last; 0: it rests. Engine thread
  const absl::Duration commit_grace_;
  WorkerMetrics metrics_;
  TaskInbox inbox_;
  CallRegistry registry_;
  CallLifecycle lifecycle_;
  IdleScorer scorer_;
  IdleEmbedder embedder_;
  std::thread engine_thread_;
};

}  // namespace withy::serving
