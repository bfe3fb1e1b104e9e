// Finds out in quiet moments how often lower levels answer an app's prompts as the full model does:
// has the full model and each lower level answer a prompt that was answered lately, greedily, and
// compares. Answers are told to nobody and kept nowhere. Neighbours: idle_task.h waits and asks,
// policy/call/agreement.h counts, gateway.cc owns it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/board/idle_task.h"
#include "policy/call/agreement.h"
#include "telemetry/recorder.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::orchestrator {

// Thread-safe.
class Auditor {
 public:
  static constexpr size_t kApps = 64;  // that are remembered, those that called last

  Auditor(Backends& backends, const Clock& clock, telemetry::Recorder& recorder);

  // A call has come, or has gone: audits happen while none is there.
  void CallStarts() { idle_.CallStarts(); }
  void CallEnds() { idle_.CallEnds(); }

  // A stateless call was answered as `run` says in `tokens` tokens, by a model of these levels
  // (ascending, in per cent). Of an app the last one waits to be audited; long answers are not:
  // they say the same in other words. A worker that was restarted may serve another model: what is
  // known of the one before is forgotten.
  void Offer(const v1::RunRequest& run, uint32_t tokens, std::vector<uint32_t> levels);

  // What is known of an app's prompts.
  policy::Agreement AgreementOf(const std::string& app_id) const;

 private:
  struct Sample {
    v1::RunRequest run;
    std::vector<uint32_t> levels;  // still to be asked, the full one last
    std::string full = {};         // its answer
    bool full_known = false;
  };
  struct App {
    policy::Agreement agreement;
    uint32_t offered = 0;
    uint64_t last_offer = 0;  // of all apps' offers, the number of its last one
    std::unique_ptr<Sample> waiting;
  };

  int64_t AuditNext();
  // An app whose answer waits; end: none.
  std::map<std::string, App>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Audit(const std::string& app_id, Sample* sample);
  absl::StatusOr<std::string> Ask(const v1::RunRequest& run, uint32_t level_percent);

  telemetry::Counter& audits_;
  mutable absl::Mutex mutex_;
  std::map<std::string, App> apps_ ABSL_GUARDED_BY(mutex_);
  uint64_t offers_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t worker_instance_ ABSL_GUARDED_BY(mutex_) = 0;  // that they are known of
  std::string last_app_ ABSL_GUARDED_BY(mutex_);          // that was audited
  IdleTask idle_;                                         // uses the others
};

}  // namespace withy::orchestrator
