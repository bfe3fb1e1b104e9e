// How long tasks of this board, or of this process's cgroup, wait for memory: the kernel's pressure
// stall information. Neighbour: pressure_watch.cc shrinks the arena by it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace withy::context_store {

// The pressure file of this process: that of its cgroup if there is one, else the board's. Empty:
// the kernel tells no pressure. `root` is prepended to /proc and /sys.
std::string FindPressureFile(const std::string& root = "");

// Microseconds for which some task waited, from the content of a pressure file. Errors:
// INVALID_ARGUMENT.
absl::StatusOr<uint64_t> ParseStalledMicros(const std::string& text);

// For one thread.
class MemoryPressure {
 public:
  // Asks the kernel to wake Wait() once tasks wait for a tenth of two seconds; where it may not
  // ask, Wait() just waits. Errors: those of open(2) and of ParseStalledMicros, naming the file.
  static absl::StatusOr<std::unique_ptr<MemoryPressure>> Open(const std::string& path);

  // Waits until `timeout` has passed, the kernel reports pressure, or `stop` (an eventfd) is
  // readable.
  void Wait(int stop, absl::Duration timeout) const;
  // Microseconds for which some task waited since Open or the last call. Errors: as Open.
  absl::StatusOr<uint64_t> StalledMicros();
  bool triggered() const { return triggered_; }  // whether the kernel wakes Wait()

 private:
  explicit MemoryPressure(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<uint64_t> ReadTotal() const;

  const std::string path_;
  UniqueFd fd_;
  bool triggered_ = false;
  uint64_t total_us_ = 0;
};

}  // namespace withy::context_store
