// Work that follows something that is already done and durable, such as freeing what a deleted
// context had: where it fails (a full disk), it is tried again until it succeeds. Neighbour:
// deletions.h, which says what the work is.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace withy::context_store {

// Thread-safe. `work` runs on a thread of its own; it returns OK once nothing is left to do.
class CleanUp {
 public:
  struct Pauses {
    absl::Duration first = absl::Seconds(1);
    absl::Duration longest = absl::Minutes(1);  // doubled up to here
  };
  CleanUp(std::function<absl::Status()> work, Pauses pauses);
  // Does not wait for a pause; what is left then is done by the next start.
  ~CleanUp();
  CleanUp(const CleanUp&) = delete;
  CleanUp& operator=(const CleanUp&) = delete;

  // Something is left: `work` runs after the first pause.
  void Begin();

 private:
  void Run();

  const std::function<absl::Status()> work_;
  const Pauses pauses_;
  absl::Mutex mutex_;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace withy::context_store
