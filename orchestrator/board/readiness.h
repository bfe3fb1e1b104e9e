// Whether a call could be answered now, and if not, why: asks the processes that every call needs.
// Neighbours: process.cc tells gRPC's health service, http_door.cc and status_report.cc ask.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/board/backends.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {

// Thread-safe. One thread from Start to destruction. Its gauge is withy_ready.
class Readiness {
 public:
  Readiness(Backends& backends, const Clock& clock, telemetry::Recorder& recorder);
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  // Looks now and from now on every second. `tell` is called with every change, on that thread,
  // and with the first result.
  void Start(std::function<void(bool ready)> tell);
  // No more calls are taken: never ready again.
  void Drain();
  // For people; empty: ready, or not started.
  std::string Why() const;

  // Asks the processes now; the thread does so, too.
  void Look();

 private:
  void Run();
  // Empty: it serves.
  std::string WhyNot(std::string_view process);

  Backends& backends_;
  const Clock& clock_;
  telemetry::Gauge& gauge_;
  std::function<void(bool ready)> tell_;
  std::array<int64_t, 3> away_ns_{};  // since when each process does not serve; 0: it does
  mutable absl::Mutex mutex_;
  std::string why_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::orchestrator
