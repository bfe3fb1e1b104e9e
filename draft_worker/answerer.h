// Answers calls with the draft model, one after another, from a bounded queue. Neighbours:
// engine/session makes each answer; service.cc speaks the wire. Knows no gRPC and keeps no context.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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

// Who is told about a call; from the answering thread, Done last. Methods may wait for a slow
// reader, which holds up the calls behind it: for a stated time in all, after which the call is
// `cancelled`.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void Begun(int32_t queue_position) = 0;
  // So many of the prompt's tokens have been computed.
  virtual void Progress(int32_t computed, int32_t tokens) = 0;
  virtual void Delta(const engine::AnswerDelta& delta) = 0;
  virtual void Done(const absl::StatusOr<engine::SoloResult>& result, int64_t arrived_ns) = 0;
  // The caller is gone: the call fails. Asked between steps.
  virtual bool cancelled() const = 0;
};

struct AnswererLoad {
  size_t running = 0;
  size_t queued = 0;
};

// Everything passed in is borrowed and outlives it. Public methods may be called from any thread.
class Answerer {
 public:
  struct Options {
    size_t queue_limit = 64;
    int32_t piece_rows = 64;  // prompt tokens between two looks at a cancellation
  };

  Answerer(engine::ServedModel& model, const Options& options, Clock& clock,
           telemetry::Recorder& recorder);
  ~Answerer();
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

  // Queues a validated call. Errors: RESOURCE_EXHAUSTED naming the bound, UNAVAILABLE while
  // draining; the sink is then not called.
  absl::Status Submit(uint64_t call_id, engine::AnswerRequest request,
                      std::shared_ptr<AnswerSink> sink);
  // Ends a call because its caller said so: what there is of its answer is its result. False: no
  // such call is here.
  bool Cancel(uint64_t call_id);
  // Refuses new calls, lets those there finish for `grace`, then fails those that wait and the one
  // that runs.
  void Drain(absl::Duration grace);

  AnswererLoad load() const;
  // False when a step has taken implausibly long.
  bool MakesProgress() const;
  // How long it has taken so far; 0 when there is none.
  int64_t PieceNanos() const;

 private:
  struct Call {
    uint64_t call_id = 0;
    engine::AnswerRequest request;
    std::shared_ptr<AnswerSink> sink;  // shared with the RPC, which may end first
    int64_t arrived_ns = 0;
    int32_t queue_position = 0;
  };

  void Run();
  absl::StatusOr<engine::SoloResult> Answer(const Call& call);
  absl::StatusOr<engine::SoloResult> Judge(absl::StatusOr<engine::SoloResult> result) const;

  engine::ServedModel& model_;
  const Options options_;
  Clock& clock_;
  telemetry::Recorder& recorder_;
  telemetry::Counter& generated_;
  telemetry::Gauge& running_;
  telemetry::Gauge& queued_;

  mutable absl::Mutex mutex_;
  std::deque<Call> waiting_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t busy_call_ ABSL_GUARDED_BY(mutex_) = 0;  // while busy_
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> cancel_all_{false};
  std::atomic<bool> cancel_call_{false};   // the one that runs, by its caller
  std::atomic<int64_t> step_since_ns_{0};  // 0 = nothing is computed
  std::thread thread_;
};

}  // namespace withy::draft_worker
