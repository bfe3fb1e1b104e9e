// What the mains of the five processes share: flags, configuration, log, signals, systemd.
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

// A running process, from the point of view of its main. Created and destroyed on the main thread.
class Process {
 public:
  virtual ~Process() = default;
  // Stops taking work and finishes what runs, for at most `grace`. Called once, before destruction.
  virtual void Drain(absl::Duration grace) = 0;
  // Whether work that should advance has advanced lately; asked a few times a minute. While it says
  // false the systemd watchdog is not fed, so that a hung process is restarted. Must not block.
  virtual bool MakesProgress() { return true; }
  // How long the piece of work under way has taken; 0 when there is none. One of several seconds,
  // in a process that neither computes nor waits for its disk, hangs: see HangWatch. Must not
  // block.
  virtual int64_t PieceNanos() { return 0; }
  // Where its server listens, for the log.
  virtual std::vector<std::string> addresses() const = 0;
};

using ProcessFactory = std::function<absl::StatusOr<std::unique_ptr<Process>>(const v1::Config&)>;

// Runs the process until SIGTERM, SIGINT or SIGQUIT; process_watch.h says what other signals do.
// Flags: --config FILE, --set FIELD.PATH=VALUE (any number), --help, --version. Makes run_dir (mode
// 0755: apps look for their socket in it) and state_dir (0700); what the process makes itself is
// for its user alone (umask 0077). While `create` says RESOURCE_EXHAUSTED (a full disk) it is
// called again and again, and who calls the process meanwhile is told why. Tells systemd READY when
// `create` has returned a process, then feeds its watchdog. Exit code: 0 after a drain, or a signal
// while it started; 2 for wrong flags or a wrong configuration, which starting again would not
// help: one that cannot be read, and a start that ends with INVALID_ARGUMENT, NOT_FOUND or
// UNIMPLEMENTED; 1 for any other failure. The reason is on stderr.
int RunDaemon(int argc, char** argv, std::string_view name, const ProcessFactory& create);

// Fills process, pid, version, uptime_s and resident_bytes.
void FillProcessStatus(std::string_view process, v1::ProcessStatus* status);

}  // namespace withy::rpc
