// The writing half of a streamed answer. Any thread pushes messages and gRPC sends them in order. A
// slow reader blocks the producer; a client that disconnects ends the call.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/open_streams.h"
#include "rpc/status.h"

namespace withy::rpc {

// Created by Create() in the RPC's handler, which returns reactor() to gRPC. It keeps itself alive
// until gRPC is done with it. Producers share ownership because they may outlive the call.
// Thread-safe.
//
//   auto queue = WriteQueue<Response>::Create(answers);
//   pool.Run([queue] { queue->Push(first); ...; queue->Close(absl::OkStatus()); });
//   return queue->reactor();
template <typename Response>
class WriteQueue final : private grpc::ServerWriteReactor<Response> {
 public:
  static constexpr size_t kLimit = 256;  // maximum number of waiting messages; a further push waits

  // `open` counts the call until its end is sent: the server's, which closes connections once it
  // counts none. `context`: the call's, which gRPC keeps until the call is closed; with it, a retry
  // hint in the final status is sent in the trailing metadata.
  static std::shared_ptr<WriteQueue> Create(OpenStreams& open,
                                            grpc::CallbackServerContext* context = nullptr) {
    auto queue = std::shared_ptr<WriteQueue>(new WriteQueue(open));
    queue->context_ = context;
    open.Begin();
    absl::MutexLock lock(&queue->mutex_);
    queue->self_ = queue;
    return queue;
  }

  grpc::ServerWriteReactor<Response>* reactor() { return this; }

  // Queues `response`. Waits while kLimit messages are queued. Returns false if the call was
  // cancelled or closed: no one reads any more.
  bool Push(Response response) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &WriteQueue::HasRoomOrEnded));
    if (cancelled_ || closed_) return false;
    pending_.push_back(std::move(response));
    if (pending_.size() == 1) StartNext();
    return true;
  }

  // Whether Push would not wait, with a margin; for a producer that must never wait.
  bool HasRoom() const {
    absl::MutexLock lock(&mutex_);
    return pending_.size() < kLimit / 2;
  }

  // Waits until Push would not wait, for at most `timeout`. Returns false if it still would: the
  // reader is too slow. Returns true also if the call has ended; the next Push reports that.
  bool WaitForRoom(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &WriteQueue::HasRoomOrEnded), timeout);
  }

  // Ends the call with `status` after all queued messages. Only the first Close or Abandon has an
  // effect.
  void Close(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    End(status);
  }

  // Ends the call and drops the queued messages, except the one that gRPC is sending. For a reader
  // that has stopped reading.
  void Abandon(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    while (pending_.size() > 1) pending_.pop_back();
    End(status);
  }

  // True if the client cancelled, the deadline passed or the connection broke.
  bool cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  // Calls `callback` once when the call is cancelled; immediately if it already was. `callback`
  // must not block.
  void OnCancelled(std::function<void()> callback) {
    {
      absl::MutexLock lock(&mutex_);
      if (!cancelled_) {
        on_cancelled_ = std::move(callback);
        return;
      }
    }
    callback();
  }

 private:
  explicit WriteQueue(OpenStreams& open) : open_(open) {}

  bool HasRoomOrEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return cancelled_ || closed_ || pending_.size() < kLimit;
  }
  // StartWrite and Finish only queue work inside gRPC. They may be called under the lock: they
  // never call back.
  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { this->StartWrite(&pending_.front()); }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closed_) return;
    closed_ = true;
    status_ = ToGrpc(status);
    if (context_ != nullptr) AddRetryHint(status, context_);
    if (pending_.empty()) this->Finish(status_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    pending_.pop_front();
    if (!ok) {
      pending_.clear();
      cancelled_ = true;
    }
    if (!pending_.empty()) {
      StartNext();
    } else if (closed_) {
      this->Finish(status_);
    }
  }

  void OnCancel() override {
    // Keeps the queue alive until the callback has returned.
    std::shared_ptr<WriteQueue> keep;
    std::function<void()> callback;
    {
      absl::MutexLock lock(&mutex_);
      keep = self_;
      cancelled_ = true;
      callback = std::move(on_cancelled_);
      on_cancelled_ = nullptr;
    }
    if (callback) callback();
  }

  void OnDone() override {
    std::shared_ptr<WriteQueue> last;  // destroyed after the lock on its member mutex_
    {
      absl::MutexLock lock(&mutex_);
      last = std::move(self_);
      on_cancelled_ = nullptr;
    }
    open_.End();
  }

  grpc::CallbackServerContext* context_ = nullptr;  // set once, before gRPC sees the reactor
  OpenStreams& open_;
  mutable absl::Mutex mutex_;
  std::deque<Response> pending_ ABSL_GUARDED_BY(mutex_);  // the front message is being sent
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_cancelled_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WriteQueue> self_ ABSL_GUARDED_BY(mutex_);  // until gRPC is done with it
};

}  // namespace withy::rpc
