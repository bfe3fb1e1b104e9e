// Starts, kills and restarts processes of the service for a benchmark, in a directory of their own.
// Neighbours: contexts_run.cc runs context_store alone, torture.cc all five.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace withy::bench {

inline const std::vector<std::string> kAllProcesses = {
    "context_store", "model_worker", "draft_worker", "profiler_agent", "orchestrator"};

// A directory below $TMPDIR (or /tmp) that is removed with the object.
class TemporaryDirectory {
 public:
  // Errors: of mkdtemp(3).
  static absl::StatusOr<TemporaryDirectory> Create(const std::string& name);
  TemporaryDirectory() = default;
  ~TemporaryDirectory();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept;
  TemporaryDirectory& operator=(TemporaryDirectory&& other) noexcept;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Not thread-safe. The binaries are those in this program's directory. The destructor kills what
// runs.
class Processes {
 public:
  // `directory` exists; `config` is the textproto of all processes, without run_dir and state_dir,
  // which are directories in it. Errors: the configuration file cannot be written.
  static absl::StatusOr<Processes> Create(const std::string& directory, const std::string& config);
  ~Processes();
  Processes(Processes&&) = default;
  Processes& operator=(Processes&&) = delete;

  // Added to this program's environment for processes that are started from now on.
  void set_environment(std::vector<std::string> environment) {
    environment_ = std::move(environment);
  }
  // Another program of the same directory is this process from now on.
  void Use(const std::string& name, const std::string& program) { programs_[name] = program; }
  // Does not wait. The log is DIRECTORY/NAME.log. Errors: NOT_FOUND (no such binary), others of
  // posix_spawn(3).
  absl::Status Start(const std::string& name);
  // SIGKILL; on return the process is gone. Nothing happens if it does not run.
  void Kill(const std::string& name);
  // Nothing happens if it does not run.
  void Signal(const std::string& name, int signal) const;
  // SIGTERM, and SIGKILL after `grace`. Returns whether the first was enough.
  bool Stop(const std::string& name, absl::Duration grace = absl::Seconds(30));
  // -1 if it does not run.
  pid_t pid(const std::string& name) const {
    const auto found = running_.find(name);
    return found == running_.end() ? -1 : found->second;
  }
  // Processes that ended by themselves, with how; reported once each.
  std::vector<std::string> TakeEnded();

  std::string run_dir() const { return directory_ + "/run"; }
  std::string state_dir() const { return directory_ + "/state"; }
  // The last lines of a process's log.
  std::string LogTail(const std::string& name) const;

 private:
  explicit Processes(std::string directory) : directory_(std::move(directory)) {}

  std::string directory_;
  std::vector<std::string> environment_;
  std::map<std::string, std::string> programs_;  // by process, others than its own
  std::map<std::string, pid_t> running_;
};

}  // namespace withy::bench
