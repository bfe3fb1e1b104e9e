// Signals, hang detection and systemd time-outs, for the main of a process. Neighbour: daemon.cc,
// the only user. Knows nothing of the process's work.
//
//   SIGTERM, SIGINT, SIGQUIT   end the process: immediately during start, else after a drain
//   SIGHUP                     logged; the configuration is read only at start
//   SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ   ignored; failed writes return an error instead
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace withy::rpc {

// Blocks the signals that are handled by waiting and ignores those that would end the process for
// no good reason. Call before starting any thread, because all threads inherit the mask.
sigset_t BlockSignals();

// Whether `signal` ends the process. Logs a signal that does not.
bool EndsProcess(int signal);

// Runs `tick` in its own thread, at once and then every `period`, until destruction. Also handles
// the signals in `signals`: one that ends the process exits here with code 0 and without clean-up.
// That is meant for the start: everything created so far is recreated next time.
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

// Extends systemd's TimeoutStartSec during a start for as long as the process computes or reads,
// and feeds the watchdog, which runs already where a process is created anew
// (Process::MustRestart). A process that has used no CPU for a quarter of an hour hangs and gets no
// further extension. Not thread-safe.
class StartTimeoutExtender {
 public:
  // Call several times per `kExtension`.
  void Extend();

 private:
  static constexpr absl::Duration kExtension = absl::Seconds(20);
  static constexpr absl::Duration kLongestIdle = absl::Minutes(15);
  int64_t cpu_ns_ = 0;
  int64_t computed_ns_ = 0;  // last time it was seen to compute
};

// Whether a piece of work that has taken `piece_ns` will never end: it has taken three seconds, the
// process used less than a hundredth of the time recently, and none of its threads is busy (waiting
// for a disk or a core). A process that computes or reads may have a large piece or a slow board.
// Pure.
bool Hangs(int64_t piece_ns, double cpu_share, bool thread_busy);

// Applies Hangs() to this process; call about once a second. Not thread-safe.
class HangWatch {
 public:
  bool Hangs(int64_t piece_ns);

 private:
  int64_t cpu_ns_ = 0;  // at the last call
  int64_t asked_ns_ = 0;
};

// Period for feeding systemd's watchdog; zero if there is none.
absl::Duration WatchdogPeriod();
void FeedWatchdog();

}  // namespace withy::rpc
