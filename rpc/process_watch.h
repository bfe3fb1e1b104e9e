// Signals and systemd's patience, for the main of a process. Neighbour: daemon.cc, which uses all
// of it. Does not know what the process does.
//
//   SIGTERM, SIGINT, SIGQUIT   end the process: at once while it starts, else after a drain
//   SIGHUP                     noted in the log: the configuration is read at the start alone
//   SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ   ignored; what they would say comes as an error of a write
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace withy::rpc {

// Blocks the signals that are taken by waiting for them, and ignores those that would end the
// process for nothing. Before any thread: all inherit it.
sigset_t TakeSignals();

// Whether `signal` ends the process; notes in the log one that does not.
bool EndsProcess(int signal);

// Runs `tick` in a thread of its own, at once and then every `period`, from construction to
// destruction, and takes the signals of `signals` meanwhile: one that ends the process ends it
// here, with exit code 0 and nothing cleared away, which is for a start: what was being made is
// remade.
class Watch {
 public:
  Watch(absl::Duration period, std::function<void()> tick);  // no signals
  Watch(const sigset_t& signals, absl::Duration period, std::function<void()> tick);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void Run(absl::Duration period, const std::function<void()>& tick);

  UniqueFd signals_;  // a signalfd, or none
  UniqueFd stop_;     // an eventfd
  std::thread thread_;
};

// Asks systemd, while a process starts, for more time than TimeoutStartSec: as long as the process
// lives and computes or reads. One that has used no CPU for a quarter of an hour hangs, and gets no
// more. Not thread-safe.
class StartPatience {
 public:
  // A few times in `kExtension`.
  void Extend();

 private:
  static constexpr absl::Duration kExtension = absl::Seconds(20);
  static constexpr absl::Duration kLongestIdle = absl::Minutes(15);
  int64_t cpu_ns_ = 0;
  int64_t computed_ns_ = 0;  // when it was last seen to have computed
};

// Whether a piece of work that has taken `piece_ns` will never end: for three seconds, and the
// process has computed less than a hundredth of the time lately, and no thread of it is busy:
// waits for a disk or for a core. One that computes or reads may be large, or the board slow. Pure.
bool Hangs(int64_t piece_ns, double cpu_share, bool thread_busy);

// Hangs() for this process, asked every second or so. Not thread-safe.
class HangWatch {
 public:
  bool Hangs(int64_t piece_ns);

 private:
  int64_t cpu_ns_ = 0;  // at the last question
  int64_t asked_ns_ = 0;
};

// How often the watchdog of systemd is to be fed; zero where there is none.
absl::Duration WatchdogPeriod();
void FeedWatchdog();

}  // namespace withy::rpc
