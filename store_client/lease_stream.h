// The worker's side of one ContextStore.Lease stream: sends requests, receives events. Neighbours:
// lease_client.h opens them, lease.h is what the core sees.
#pragma once

#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "serving/session/lease.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::store_client {

// Owned by gRPC until the stream ends, and shared with the handle that the core holds.
// Thread-safe. After a commit or an abort was sent nothing else goes out; events end with
// OnCommitted or OnBroken, unless the handle went before.
class LeaseStream final : public grpc::ClientBidiReactor<v1::LeaseRequest, v1::LeaseEvent> {
 public:
  struct Context {
    std::shared_ptr<const serving::Arena> arena;
    // Told once, last, from gRPC's threads; the stream is gone by then, unless its handle lives.
    std::function<void(const absl::Status&)> on_done;
    std::function<v1::LeaseCommit(const serving::LeaseCommit&)> to_wire;
  };

  // Starts the stream and sends `open`. The result aborts the lease when it is destroyed.
  static std::shared_ptr<serving::Lease> Open(v1::ContextStore::Stub& stub,
                                              const v1::LeaseOpen& open,
                                              std::shared_ptr<serving::LeaseEvents> events,
                                              Context context,
                                              std::shared_ptr<LeaseStream>* stream);

  // Ends the stream from outside; OnBroken follows.
  void Cancel() { client_context_.TryCancel(); }

 private:
  class Handle;

  LeaseStream(std::shared_ptr<serving::LeaseEvents> events, Context context)
      : events_(std::move(events)), context_(std::move(context)) {}

  void Send(v1::LeaseRequest request, bool last);
  void Drop();
  void SendAbort() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dispatch(const v1::LeaseEvent& event);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext client_context_;
  v1::LeaseEvent incoming_;
  const std::shared_ptr<serving::LeaseEvents>
      events_;  // shared with the core, which may drop the lease first
  const Context context_;

  absl::Mutex mutex_;
  std::deque<v1::LeaseRequest> outgoing_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  std::weak_ptr<serving::Lease> handle_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool last_sent_ ABSL_GUARDED_BY(mutex_) = false;  // commit or abort is on its way
  bool writes_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // committed, or nobody cares any more
  std::shared_ptr<LeaseStream> self_;           // set before gRPC sees it, cleared in OnDone
};

}  // namespace withy::store_client
