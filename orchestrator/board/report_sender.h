// Hands reports of calls to profiler_agent without waiting for it. Of equal refusals of an app one
// is under way at a time; those that come meanwhile are counted, and sent as one when it has
// arrived: a client that is refused without end costs one message a round trip. Neighbour:
// backends.h sends.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "withy/v1/profiler.pb.h"

namespace withy::orchestrator {

// Thread-safe. Shared with what Send hands on, which may come when the owner is gone.
class ReportSender : public std::enable_shared_from_this<ReportSender> {
 public:
  static constexpr int kMostUnderWay = 64;

  // Sends a report and calls `done` once, from any thread, when it has arrived or is lost.
  using Send = std::function<void(v1::CallReport report, std::function<void()> done)>;

  explicit ReportSender(Send send) : send_(std::move(send)) {}

  // Where kMostUnderWay are under way, the report is lost.
  void Add(v1::CallReport report);

 private:
  struct Refusal {
    v1::CallReport sent;
    std::optional<v1::CallReport> later = std::nullopt;  // those that have come since
  };

  // The refusal under way that is equal; end(): none is.
  std::vector<Refusal>::iterator Find(const v1::CallReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Launch(v1::CallReport report);
  // What is to be sent next; nothing: `sent` was the last of its kind.
  std::optional<v1::CallReport> Done(const v1::CallReport& sent);

  const Send send_;
  absl::Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Refusal> refusals_ ABSL_GUARDED_BY(mutex_);  // under way
};

}  // namespace withy::orchestrator
