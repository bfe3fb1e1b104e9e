// Common parts of the five processes' mains: flags, configuration, log, signals, systemd.
//
//   int main(int argc, char** argv) {
//     return withy::rpc::RunDaemon(argc, argv, "context_store", [](const proto::Config& config) {
//     return Open(config); });
//   }
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace withy::v1 {
class Config;
class ProcessStatus;
}  // namespace withy::v1

namespace withy::rpc {

// A running process, as its main sees it. Created and destroyed on the main thread.
class Process {
 public:
  virtual ~Process() = default;
  // Stops accepting work and finishes running calls within `grace`. Called once, before
  // destruction, which ends all other work. If that takes several seconds, the process ends in the
  // middle of it.
  virtual void Drain(absl::Duration grace) = 0;
  // Whether pending work has advanced recently. Asked a few times a minute. While it returns false,
  // the systemd watchdog is not fed, so that systemd restarts a hung process. Must not block.
  virtual bool MakesProgress() { return true; }
  // Nanoseconds that the current piece of work has taken; 0 if there is none. A process whose piece
  // takes several seconds while it neither computes nor waits for its disk hangs (see HangWatch).
  // Must not block.
  virtual int64_t PieceNanos() { return 0; }
  // Why it cannot go on and must be created anew, such as damaged weights; OK: it goes on. Asked
  // every second. Must not block.
  virtual absl::Status MustRestart() { return absl::OkStatus(); }
  // Why the program must begin anew with the files as they are now, such as another model; empty:
  // it goes on. Running calls end first. Asked every second. Must not block.
  virtual std::string MustBeginAnew() { return ""; }
  // Why no call could be answered now, for systemd's status; empty: it serves. Asked every second.
  // Must not block.
  virtual std::string WhyNotReady() { return ""; }
  // Where to tell how many errors the configuration has as its file is now, at the start and when
  // the file changes: a process that is started then has them. Null: nowhere. Must not block.
  virtual std::function<void(size_t errors)> ConfigErrorSink() { return nullptr; }
  // Addresses of its server, for the log.
  virtual std::vector<std::string> addresses() const = 0;
};

// Reason (error_reason.h) of a start that fails because the files have just changed, such as a
// model that was given up: the program begins anew at once.
inline constexpr char kBeginAnew[] = "BEGIN_ANEW";

using ProcessFactory = std::function<absl::StatusOr<std::unique_ptr<Process>>(const v1::Config&)>;

// Runs the process until SIGTERM, SIGINT or SIGQUIT; process_watch.h handles other signals. Flags:
// --config FILE, --set FIELD.PATH=VALUE (repeatable), --help, --version. Creates run_dir (mode
// 0755: apps look for their socket in it) and state_dir (0700); files the process creates itself
// are private to its user (umask 0077). While `create` returns RESOURCE_EXHAUSTED (a full disk), it
// is called again, and clients get the reason (stand_in.h). It is also called again once the
// process's MustRestart says so, after a drain without grace. After a MustBeginAnew and a drain the
// program executes itself again, with the same flags and the same process id. After `create` has
// returned a process, tells systemd READY and feeds its watchdog. Exit code: 0 after a drain, or
// after a signal during start; 2 for errors that a restart would not fix: wrong flags, a wrong
// configuration, or a start that fails with INVALID_ARGUMENT or UNIMPLEMENTED; 1 for any other
// failure. The reason is printed on stderr. Under systemd, which starts it again, it ends with 1
// only after a pause that grows with each start in vain, and ends early where the cause may have
// passed; clients and systemd's status have the reason meanwhile.
int RunDaemon(int argc, char** argv, std::string_view name, const ProcessFactory& create);

// Fills process, pid, version, uptime_s and resident_bytes.
void FillProcessStatus(std::string_view process, v1::ProcessStatus* status);

}  // namespace withy::rpc
