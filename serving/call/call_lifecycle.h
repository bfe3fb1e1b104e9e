// The engine thread's calls from the queue to their end: starts them, follows their leases and
// steps, commits them, or fails them. Neighbours: call_leases.h speaks to the store, step_runner.h
// computes, call_registry.h counts; scheduler.h calls it on the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "serving/call/call_leases.h"
#include "serving/call/call_registry.h"
#include "serving/call/call_state.h"
#include "serving/call/scheduler_options.h"
#include "serving/call/step_runner.h"
#include "serving/call/task_inbox.h"
#include "serving/call/worker_metrics.h"

namespace withy::serving {

// What the engine thread's parts share; outlives them.
struct EngineThreadParts {
  CallRegistry& registry;
  TaskInbox& inbox;
  Clock& clock;
  WorkerMetrics& metrics;
};

// For the engine thread but for leases(). Always: a session is touched by
// one thread at a time: this one, or the background thread while it is prepared or committed.
class CallLifecycle final : private LeaseResults, private StepResults {
 public:
  CallLifecycle(engine::Model& model, const SessionEnv& env, LeaseSource& leases,
                const SchedulerOptions& options, const StepRunnerOptions& runner,
                const EngineThreadParts& parts);

  // Takes a call in; a rebuild fails at once while others are here, and every other call ends them.
  void Enqueue(std::unique_ptr<Call> call);
  // One round: ends calls that nobody reads, starts those whose turn it is, computes a step. False:
  // there was nothing to compute.
  bool RunRound();
  // How long to wait for tasks when nothing is to be computed: a paused call wakes nobody, nor does
  // a disk that hangs.
  absl::Duration IdleWait() const;

  // As Scheduler::BreakOff; `why` is OK when the caller wants the answer so far.
  void Stop(Ticket ticket, const absl::Status& why);
  // As Scheduler::CancelCall; whether there is such a call.
  bool CancelCall(uint64_t call_id);
  void StopAll(const absl::Status& why);
  void CancelRebuilds();
  // Fails every call that has a lease.
  void FailLeased(const absl::Status& status);
  // Tells all calls that are left that they failed, once the engine thread is over.
  void FailRemaining(const absl::Status& status);

  CallLeases& leases() { return leases_; }
  StepRunner& runner() { return runner_; }

 private:
  void Open(Call& call);
  void FollowLoads();
  void GiveUp(Call& call, uint32_t chunk);
  void Commit(Call& call);
  void Fail(Call& call, const absl::Status& status);
  void Erase(Ticket ticket);
  void PublishLoad();

  void OnPrepared(Ticket ticket, std::shared_ptr<Session> session, int64_t opened_ns) override;
  void OnLoad(Ticket ticket, LoadEvent event) override;
  void OnClaimed(Ticket ticket, std::vector<ChunkSlot> chunks, std::string refused) override;
  void OnCommitted(Ticket ticket) override;
  void OnBroken(Ticket ticket, absl::Status status) override;
  void OnComputed(Call& call) override;
  void OnRefused(Call& call, const absl::Status& status) override { Fail(call, status); }

  const int32_t max_batch_;
  CallRegistry& registry_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  Calls calls_;
  CallLeases leases_;
  StepRunner runner_;
};

}  // namespace withy::serving
