#include "rpc/process_watch.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/files.h"

namespace withy::rpc {
namespace {

int64_t CpuNanos() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * kNanosPerSecond + used.tv_nsec;
}

constexpr size_t kMostStatBytes = 1 << 12;

// Whether another thread is runnable (R: it may wait for a core) or waits for a disk (D). The state
// follows the thread's name, which is in parentheses and may contain anything.
bool AnotherThreadIsBusy() {
  const std::string own = std::to_string(gettid());
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator("/proc/self/task", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    if (it->path().filename() == own) continue;
    const std::string stat = ReadFile(it->path() / "stat", kMostStatBytes).value_or("");
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos || name_end + 2 >= stat.size()) continue;
    const char state = stat[name_end + 2];
    if (state == 'R' || state == 'D') return true;
  }
  return false;
}

}  // namespace

sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  return signals;
}

bool EndsProcess(int signal) {
  if (signal != SIGHUP) return true;
  spdlog::info("{}: ignored; the configuration is read only at start", strsignal(signal));
  return false;
}

Watch::Watch(absl::Duration period, std::function<void()> tick)
    : stop_(eventfd(0, EFD_CLOEXEC)),
      thread_([this, period, tick = std::move(tick)] { Run(period, tick); }) {}

Watch::Watch(const sigset_t& signals, absl::Duration period, std::function<void()> tick)
    : signals_(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      thread_([this, period, tick = std::move(tick)] { Run(period, tick); }) {}

Watch::~Watch() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watch::Run(absl::Duration period, const std::function<void()>& tick) {
  std::array<pollfd, 2> polled = {pollfd{stop_.get(), POLLIN, 0},
                                  pollfd{signals_.get(), POLLIN, 0}};  // -1 is ignored
  const int64_t period_ns = absl::ToInt64Nanoseconds(period);
  int64_t next_ns = 0;
  while (true) {
    const int64_t now_ns = Clock::Real().SteadyNanos();
    if (now_ns >= next_ns) {
      tick();
      next_ns = now_ns + period_ns;
    }
    const int64_t wait_ms = (next_ns - now_ns) / kNanosPerMilli + 1;
    if (poll(polled.data(), polled.size(), static_cast<int>(wait_ms)) <= 0) continue;
    if (polled[0].revents != 0) return;
    signalfd_siginfo signal{};
    if (read(signals_.get(), &signal, sizeof signal) != sizeof signal) continue;
    if (!EndsProcess(static_cast<int>(signal.ssi_signo))) continue;
    spdlog::info("{} during start: stopped", strsignal(static_cast<int>(signal.ssi_signo)));
    sd_notify(0, "STOPPING=1\nSTATUS=stopped while it started");
    _exit(0);
  }
}

void StartTimeoutExtender::Extend() {
  constexpr int64_t kComputes = kNanosPerMilli;  // more than this thread alone uses per tick
  const int64_t cpu_ns = CpuNanos();
  const int64_t now = Clock::Real().SteadyNanos();
  if (computed_ns_ == 0 || cpu_ns - cpu_ns_ > kComputes) computed_ns_ = now;
  cpu_ns_ = cpu_ns;
  if (now - computed_ns_ > absl::ToInt64Nanoseconds(kLongestIdle)) return;
  sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%lld",
             static_cast<long long>(absl::ToInt64Microseconds(kExtension)));
  if (WatchdogPeriod() > absl::ZeroDuration()) FeedWatchdog();
}

bool Hangs(int64_t piece_ns, double cpu_share, bool thread_busy) {
  constexpr int64_t kLongPiece = 3 * kNanosPerSecond;
  constexpr double kIdleShare = 0.01;
  return piece_ns >= kLongPiece && cpu_share < kIdleShare && !thread_busy;
}

bool HangWatch::Hangs(int64_t piece_ns) {
  const int64_t cpu_ns = CpuNanos();
  const int64_t now = Clock::Real().SteadyNanos();
  const double share =
      static_cast<double>(cpu_ns - std::exchange(cpu_ns_, cpu_ns)) /
      static_cast<double>(std::max<int64_t>(1, now - std::exchange(asked_ns_, now)));
  // Checks the threads last, because that reads a file for each.
  return rpc::Hangs(piece_ns, share, false) && !AnotherThreadIsBusy();
}

absl::Duration WatchdogPeriod() {
  uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(0, &watchdog_us) <= 0) return absl::ZeroDuration();
  return absl::Microseconds(static_cast<int64_t>(watchdog_us)) / 3;
}

void FeedWatchdog() { sd_notify(0, "WATCHDOG=1"); }

}  // namespace withy::rpc
