// How often a process has started in vain, across its processes: systemd 252 cannot make the pauses
// between restarts grow. Neighbours: daemon.cc waits before it ends, or before it starts.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace withy::rpc {

// Counts in a file of a directory that a reboot empties. Not thread-safe. A file that cannot be
// read or written counts as none.
class StartTries {
 public:
  // This start is one more.
  explicit StartTries(std::string path);

  // Starts before this one since the last that served for a while.
  uint32_t in_vain() const { return in_vain_; }
  // The start before this one did not fail: its process was killed, or crashed.
  bool crashed() const { return crashed_; }

  // This one fails: the next knows that it waited already.
  void Failed();
  // This one has served for a while, or was ended on purpose.
  void Served();

 private:
  void Write(bool failed) const;

  const std::string path_;
  uint32_t in_vain_ = 0;
  bool crashed_ = false;
};

// Before another start: half a second, twice as long after each, a minute at most. Pure.
absl::Duration PauseAfterFailures(uint32_t in_vain);
// Likewise, but none after the first few: a crash is to be mended within seconds. Pure.
absl::Duration PauseAfterCrashes(uint32_t in_vain);

}  // namespace withy::rpc
