// A call's lease on the store: opens it, prepares the call's session from what it brings, claims
// blocks ahead, commits. Neighbours: lease.h is the store's side; call_lifecycle.h is told what
// comes of it. Encoding, naming and hashing run on a thread of their own, so that steps do not wait
// for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "serving/call/call_state.h"
#include "serving/call/task_inbox.h"
#include "serving/call/task_thread.h"
#include "serving/call/worker_metrics.h"
#include "serving/session/lease.h"
#include "serving/session/session.h"

namespace withy::serving {

// Told on the inbox's thread.
class LeaseResults {
 public:
  virtual ~LeaseResults() = default;
  virtual void OnPrepared(Ticket ticket, std::shared_ptr<Session> session, int64_t opened_ns) = 0;
  virtual void OnLoad(Ticket ticket, LoadEvent event) = 0;
  virtual void OnClaimed(Ticket ticket, std::vector<ChunkSlot> chunks, std::string refused) = 0;
  virtual void OnCommitted(Ticket ticket) = 0;
  virtual void OnBroken(Ticket ticket, absl::Status status) = 0;
};

// Everything passed in is borrowed. Methods but Detach and AwaitIdle are for the inbox's thread.
class CallLeases {
 public:
  // `task_limit`: calls that may be prepared or committed at once.
  CallLeases(const SessionEnv& env, LeaseSource& source, TaskInbox& inbox, LeaseResults& results,
             Clock& clock, WorkerMetrics& metrics, size_t task_limit);
  ~CallLeases();
  CallLeases(const CallLeases&) = delete;
  CallLeases& operator=(const CallLeases&) = delete;

  // Opens the call's lease; OnPrepared, OnBroken follow. Errors: as LeaseSource::Open.
  absl::Status Open(Call& call);
  // Claims blocks for the rows of the call's next steps; OnClaimed follows when any are missing. As
  // YieldAhead, too.
  void ClaimAhead(Call& call);
  // Asks for chunks to compute instead of waiting for their reading, where the call would have
  // nothing else to compute; OnLoad follows.
  void YieldAhead(Call& call);
  // Commits what the call has computed and answered; OnCommitted or OnBroken follows.
  // Errors: INTERNAL when too many tasks wait.
  absl::Status Commit(const Call& call);

  // Lease events that come from now on are ignored.
  void Detach();
  // Returns once all background tasks that were begun before are over.
  void AwaitIdle();

 private:
  struct Link;
  class Events;
  // A call that is being prepared. Of the background thread.
  struct Preparing {
    Ticket ticket = 0;
    std::shared_ptr<const std::atomic<bool>> over;  // true once the call is gone
    std::shared_ptr<Session> session;
    std::weak_ptr<Lease> lease;  // the call keeps it; its events keep this
    int64_t opened_ns = 0;
  };

  // Any thread. The first makes the call's session and asks the store for chunks of other contexts
  // that it may use; the second follows with the answer, or at once if there are none to ask for.
  void Prepare(std::shared_ptr<Preparing> call, CallRequest request, std::shared_ptr<Lease> lease,
               OpenedLease opened);
  void TakeShared(std::shared_ptr<Preparing> call, std::vector<ResidentChunk> chunks);
  void EndPreparing(const Preparing& call);
  void PostTask(Ticket ticket, Task task);

  const SessionEnv env_;
  LeaseSource& source_;
  TaskInbox& inbox_;
  LeaseResults& results_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  // Shared with lease events, which may outlive this object.
  const std::shared_ptr<Link> link_;
  TaskThread background_thread_;
};

}  // namespace withy::serving
