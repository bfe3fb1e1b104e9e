// Reads a packed file again and again in idle time and compares it with its checksums, so that
// bytes which the disk has lost are found before an answer is computed with them. Neighbours:
// packed_check.h checks; session/weight_guard.h decides what follows from damage.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/weights/source_identity.h"

namespace withy::engine {

struct ScrubOptions {
  std::string path;       // the packed file
  std::string memo_path;  // CheckedMemoPath
  uint64_t bytes_per_second = 0;
  absl::Duration interval;  // from the end of a check to the next
  // Called from the scrubber's thread; none may be empty.
  std::function<bool()> busy;     // nothing is read meanwhile
  std::function<bool()> suspect;  // the file gave wrong bytes
  std::function<void(uint64_t bytes)> on_bytes;
  std::function<void()> on_whole;  // a check has ended and found nothing
  // The file is damaged or cannot be read. Returns whether a whole one is there now; else it is the
  // last call, and nothing is checked any more.
  std::function<bool(const absl::Status& damage)> on_damage;
};

// The file was whole when the object was made. It is checked once per interval, counted from what
// is remembered of the last check, while no call runs; a call stops that within one block of 1 MiB.
// A file that was written to since, or that gave wrong bytes, is checked at once and at full speed.
class Scrubber {
 public:
  explicit Scrubber(ScrubOptions options);
  // Ends the check that is under way.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // Whether the file was not written to since it was last found whole. Any thread.
  bool IsUnchanged();

 private:
  void Run();
  bool IsUrgent();
  bool Check();
  absl::Status CheckAll();
  bool Pause(absl::Duration time);
  bool AwaitIdle();

  const ScrubOptions options_;
  absl::Time next_;  // of the thread
  absl::Mutex mutex_;
  FileStamp whole_ ABSL_GUARDED_BY(mutex_);  // the file when it was last found whole
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::engine
