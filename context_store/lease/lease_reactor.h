// One Lease stream, the gRPC side of a lease: reads steps, sends events, and ends the lease when
// the stream ends. Neighbours: lease_desk.h does the work, service.cc creates one per call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "context_store/disk/work_pool.h"
#include "context_store/lease_desk.h"
#include "rpc/open_streams.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::context_store {

// Keeps itself alive until gRPC is done with it. The store and the pool's tasks share ownership
// because they may call it later. Thread-safe. `desk`, `pool` and `streams`, which counts it until
// it is fully sent, are borrowed.
class LeaseReactor final : public grpc::ServerBidiReactor<v1::LeaseRequest, v1::LeaseEvent>,
                           public LeaseListener,
                           public std::enable_shared_from_this<LeaseReactor> {
 public:
  // Return the result to gRPC.
  static LeaseReactor* Create(LeaseDesk& desk, WorkPool& pool, rpc::OpenStreams& streams);

  void OnGranted() override;
  void OnLoad(LoadEvent event) override;
  void OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) override;
  void OnEnded(const absl::Status& status) override;

 private:
  //  kNew --open--> kOpening --opened--> kOpen --commit--> kCommitting --> kOver
  //  every state --abort, error, broken stream--> kOver
  enum class Stage { kNew, kOpening, kOpen, kCommitting, kOver };

  LeaseReactor(LeaseDesk& desk, WorkPool& pool, rpc::OpenStreams& streams)
      : desk_(desk), pool_(pool), streams_(streams) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Handles one step of the client. A status that is not OK ends the stream.
  absl::Status Handle();
  absl::Status HandleOpen(const v1::LeaseOpen& open);
  absl::Status HandleShare(const v1::LeaseShare& share);
  // Where room has to be made, on the pool; the answer is an event in any case.
  absl::Status HandleClaim(const v1::LeaseClaim& claim);
  absl::Status Claim(const v1::LeaseClaim& claim);
  absl::Status HandleCommit();
  void Load();
  // Claims the chunks requested with the opening. Returns false if that ended the stream.
  bool ClaimAtOnce(v1::LeaseOpened* opened);
  void Commit(LeaseOutcome outcome);

  Stage stage() const;
  LeaseId lease() const;
  void Send(v1::LeaseEvent event);
  // The client may answer as soon as it receives the event.
  void SendOpened(v1::LeaseEvent event);
  void Queue(v1::LeaseEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the stream after all sent events. Only the first call has an effect. Breaks the lease
  // unless it is over.
  void End(const absl::Status& status);
  void FinishIfOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LeaseDesk& desk_;
  WorkPool& pool_;
  rpc::OpenStreams& streams_;
  v1::LeaseRequest request_;  // being read or handled; one at a time

  mutable absl::Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kNew;
  LeaseId lease_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t claim_chunks_ ABSL_GUARDED_BY(mutex_) = 0;            // to claim with the opening
  std::deque<v1::LeaseEvent> outgoing_ ABSL_GUARDED_BY(mutex_);  // the front event is being written
  std::vector<v1::LeaseEvent> early_ ABSL_GUARDED_BY(mutex_);    // arrivals that wait for `opened`
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;  // the stream and its lease have both ended
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<LeaseReactor> self_;  // set before gRPC sees the reactor, cleared in OnDone
};

}  // namespace withy::context_store
