// Answers calls with the draft model, one after the other, from a bounded queue. Neighbours:
// engine/session makes each answer; service.cc speaks gRPC. Knows no gRPC and keeps no context.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/session/served_model.h"
#include "engine/session/solo_answer.h"
#include "telemetry/recorder.h"

namespace withy::draft_worker {

// Receives the events of a call on the answering thread, Done last. Methods may block for a slow
// reader and so delay later calls, up to a limit per call; after that the call is `cancelled`.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void Begun(int32_t queue_position) = 0;
  // `computed` of the prompt's `tokens` have been computed.
  virtual void Progress(int32_t computed, int32_t tokens) = 0;
  virtual void Delta(const engine::AnswerDelta& delta) = 0;
  virtual void Done(const absl::StatusOr<engine::SoloResult>& result, int64_t arrived_ns) = 0;
  // True if the caller is gone: the call then fails. Polled between steps.
  virtual bool cancelled() const = 0;
};

struct AnswererLoad {
  size_t running = 0;
  size_t queued = 0;
};

// Thread-safe. All arguments are borrowed and must outlive it.
class Answerer {
 public:
  struct Options {
    size_t queue_limit = 64;
    int32_t piece_rows =
        64;  // prompt tokens per prefill piece; cancellation is polled between pieces
  };

  Answerer(engine::ServedModel& model, const Options& options, Clock& clock,
           telemetry::Recorder& recorder);
  ~Answerer();
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

  // Queues a validated call. Errors, without calling the sink: RESOURCE_EXHAUSTED naming the limit,
  // UNAVAILABLE while draining.
  absl::Status Submit(uint64_t call_id, engine::AnswerRequest request,
                      std::shared_ptr<AnswerSink> sink);
  // Ends a call at its caller's request; the answer so far is its result. Returns false if there is
  // no such call.
  bool Cancel(uint64_t call_id);
  // Runs `task` on the answering thread, between two calls. While an answer is made, it waits. The
  // task hears OK, or UNAVAILABLE when the answerer is draining. Errors, without running it:
  // RESOURCE_EXHAUSTED naming the limit, UNAVAILABLE while draining.
  absl::Status Post(std::function<void(const absl::Status&)> task);
  // Refuses new calls, lets queued and running ones finish for `grace`, then fails the rest.
  void Drain(absl::Duration grace);

  AnswererLoad load() const;
  telemetry::Recorder& recorder() const { return recorder_; }
  // Numbers all passes of the model. For the answering thread: answers, and tasks of Post.
  engine::PassNumbers& pass_numbers() { return pass_numbers_; }
  // False if a step has taken implausibly long.
  bool MakesProgress() const;
  // Nanoseconds that the current step has taken; 0 if there is none.
  int64_t PieceNanos() const;

 private:
  struct Call {
    uint64_t call_id = 0;
    engine::AnswerRequest request;
    std::shared_ptr<AnswerSink> sink;  // shared with the RPC, which may end first
    int64_t arrived_ns = 0;
    int32_t queue_position = 0;
  };

  static constexpr size_t kMostTasks = 64;

  void Run();
  void RunTasks();
  absl::StatusOr<engine::SoloResult> Answer(const Call& call);
  absl::StatusOr<engine::SoloResult> Judge(absl::StatusOr<engine::SoloResult> result) const;

  engine::ServedModel& model_;
  const Options options_;
  Clock& clock_;
  telemetry::Recorder& recorder_;
  engine::PassNumbers pass_numbers_;
  telemetry::Counter& generated_;
  telemetry::Gauge& running_;
  telemetry::Gauge& queued_;

  mutable absl::Mutex mutex_;
  std::deque<Call> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void(const absl::Status&)>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t busy_call_ ABSL_GUARDED_BY(mutex_) = 0;  // while busy_
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> cancel_all_{false};
  std::atomic<bool> cancel_call_{false};   // the running call, at its caller's request
  std::atomic<int64_t> step_since_ns_{0};  // 0 = no step is running
  std::thread thread_;
};

}  // namespace withy::draft_worker
