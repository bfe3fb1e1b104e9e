// One Lease stream: the wire's side of a lease. Steps come in, events go out, and whatever ends the
// stream ends the lease. Neighbours: store.h does the work, service.cc makes one for each call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "context_store/store.h"
#include "context_store/work_pool.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::context_store {

// Keeps itself alive until gRPC is done with it; the store and the pool's tasks share ownership,
// because they may come back to it later. Thread-safe. `store` and `pool` are borrowed.
class LeaseReactor final : public grpc::ServerBidiReactor<v1::LeaseRequest, v1::LeaseEvent>,
                           public LeaseListener,
                           public std::enable_shared_from_this<LeaseReactor> {
 public:
  // Hand the result to gRPC.
  static LeaseReactor* Create(Store& store, WorkPool& pool);

  void OnGranted() override;
  void OnEnded(const absl::Status& status) override;

 private:
  //  kNew --open--> kOpening --opened--> kOpen --commit--> kCommitting --> kOver
  //  every state --abort, error, broken stream--> kOver
  enum class Stage { kNew, kOpening, kOpen, kCommitting, kOver };

  LeaseReactor(Store& store, WorkPool& pool) : store_(store), pool_(pool) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // One step of the client. Returns what ends the stream when not OK.
  absl::Status Handle();
  absl::Status HandleOpen(const v1::LeaseOpen& open);
  absl::Status HandleClaim(const v1::LeaseClaim& claim);
  absl::Status HandleCommit();
  void Load();
  // Claims what the opening asked for. False when the stream has ended by it.
  bool ClaimAtOnce(v1::LeaseOpened* opened);
  void Commit(LeaseOutcome outcome);

  Stage stage() const;
  LeaseId lease() const;
  // Moves on unless the stream is over; false when it is.
  bool Enter(Stage stage);
  void Send(v1::LeaseEvent event);
  // Ends the stream, after what was sent. The first call counts; the lease is broken unless it is
  // over.
  void End(const absl::Status& status);
  void FinishIfOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store& store_;
  WorkPool& pool_;
  v1::LeaseRequest request_;  // being read or handled; one at a time

  mutable absl::Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kNew;
  LeaseId lease_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t claim_chunks_ ABSL_GUARDED_BY(mutex_) = 0;            // to be claimed with the opening
  std::deque<v1::LeaseEvent> outgoing_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;  // ended_, and the lease is, too
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<LeaseReactor> self_;  // set before gRPC sees the reactor, cleared in OnDone
};

}  // namespace withy::context_store
