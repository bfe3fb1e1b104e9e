#include "rpc/daemon.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/thread_role.h"
#include "rpc/error_reason.h"
#include "rpc/process_watch.h"
#include "rpc/start_tries.h"
#include "rpc/start_wait.h"
#include "withy/v1/types.pb.h"

namespace withy::rpc {
namespace {

// Exit codes other than 0. The systemd units do not restart a process that exits with the second
// one.
constexpr int kFailed = 1;
constexpr int kWrongConfiguration = 2;
// A process that has served for so long did not start in vain.
constexpr absl::Duration kStarted = absl::Minutes(1);
// Between the end of the last call and the end of the process.
constexpr absl::Duration kLongestEnd = absl::Seconds(4);
const int64_t kStartedNanos = Clock::Real().SteadyNanos();

struct Flags {
  std::string config_path;
  std::vector<std::string> overrides;
};

void PrintUsage(std::string_view name, std::FILE* out) {
  std::fprintf(out,
               "usage: withy-%s [--config FILE] [--set FIELD.PATH=VALUE]... [--version]\n"
               "  --config FILE           textproto configuration (default %s; it may be missing)\n"
               "  --set model.threads=2   overrides one field; the fields are in "
               "proto/withy/v1/config.proto\n",
               std::string(name).c_str(), std::string(kDefaultConfigPath).c_str());
}

// Returns nullopt if the process must exit with *exit_code.
std::optional<Flags> ParseFlags(int argc, char** argv, std::string_view name, int* exit_code) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--config" && has_value) {
      flags.config_path = argv[++i];
    } else if (flag == "--set" && has_value) {
      flags.overrides.emplace_back(argv[++i]);
    } else if (flag == "--help" || flag == "--version") {
      if (flag == "--help") PrintUsage(name, stdout);
      if (flag == "--version")
        std::printf("withy-%s %s\n", std::string(name).c_str(), WITHY_VERSION);
      *exit_code = 0;
      return std::nullopt;
    } else {
      std::fprintf(stderr, "withy-%s: unknown or incomplete flag '%s'\n", std::string(name).c_str(),
                   argv[i]);
      PrintUsage(name, stderr);
      *exit_code = kWrongConfiguration;
      return std::nullopt;
    }
  }
  return flags;
}

std::string BinaryName(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if (c == '_') c = '-';
  }
  return text;
}

// The level of a message as the journal reads it at the start of a line: sd-daemon(3).
class JournalPriority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& to) override {
    const std::string_view priority = PriorityOf(message.level);
    to.append(priority.data(), priority.data() + priority.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JournalPriority>();
  }

 private:
  static std::string_view PriorityOf(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::critical:
        return SD_CRIT;
      case spdlog::level::err:
        return SD_ERR;
      case spdlog::level::warn:
        return SD_WARNING;
      case spdlog::level::info:
        return SD_INFO;
      default:
        return SD_DEBUG;
    }
  }
};

void SetUpLog(const std::string& name, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(name);
  // Under systemd the journal adds the time.
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (std::getenv("JOURNAL_STREAM") != nullptr) {
    formatter->add_flag<JournalPriority>('*').set_pattern("%*%l %v");
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %n %l %v");
  }
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));  // valid: FillDefaults has checked it
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

absl::Status MakeDirectory(const char* field, const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " ", path, " is no directory: choose another ", field, ", or move the file away"));
  }
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("cannot make ", field, " ", path, ": choose another ", field,
                                  ", or make it for user ", geteuid()));
}

// Creates the directories and sets a umask that makes further files private. Before any thread
// starts.
absl::Status MakeDirectories(const v1::Config& config) {
  umask(0077);
  WITHY_RETURN_IF_ERROR(MakeDirectory("state_dir", config.state_dir()));
  // Apps of other users look for the orchestrator's socket there.
  umask(0022);
  const absl::Status made = MakeDirectory("run_dir", config.run_dir());
  umask(0077);
  WITHY_RETURN_IF_ERROR(made);
  // Every process creates a socket and a span ring there.
  if (faccessat(AT_FDCWD, config.run_dir().c_str(), W_OK | X_OK, AT_EACCESS) == 0) {
    return absl::OkStatus();
  }
  return ErrnoError(absl::StrCat("cannot write run_dir ", config.run_dir(),
                                 ": choose another run_dir, or make it writable for user ",
                                 geteuid()));
}

// Whether a restart cannot help: the configuration is wrong, or names something unsupported. What
// is missing may come: a disk that is mounted later.
bool IsWrongConfiguration(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

// Metrics have to say what is wrong with a board whose configuration has errors.
bool ServesInSpiteOfErrors(std::string_view name) { return name == "profiler_agent"; }

// systemd starts the process again.
bool IsManaged() { return std::getenv("NOTIFY_SOCKET") != nullptr; }

// Where starts in vain are counted.
std::string TriesPath(std::string_view name, const v1::Config& config) {
  const char* runtime = std::getenv("RUNTIME_DIRECTORY");
  return absl::StrCat(runtime == nullptr ? config.run_dir() : runtime, "/", ToAbsl(name),
                      ".starts");
}

// What a unit's sandbox hides, where that may be why a file cannot be opened.
std::string SandboxHint(const absl::Status& status, const v1::Config& config) {
  if (!IsManaged() || !(absl::IsPermissionDenied(status) || absl::IsNotFound(status))) return "";
  for (const std::string& path :
       {config.model().path(), config.draft().path(), config.state_dir(),
        config.orchestrator().tlm_path(), config.store().master_key_path(),
        config.tls().certificate_file(), config.tls().key_file(), config.tls().client_ca_file()}) {
    for (const char* hidden : {"/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"}) {
      if (!path.starts_with(hidden) || !absl::StrContains(status.message(), path)) continue;
      return absl::StrCat(": the unit hides ", hidden,
                          " (ProtectHome, PrivateTmp); `withyctl "
                          "config install FILE` lets ",
                          path, " in, or put it elsewhere, readable for the user withy");
    }
  }
  return absl::IsPermissionDenied(status) ? ": the user withy must be able to read it" : "";
}

// Creates the process. If there is no room for it (full disk, no inodes, no memory), waits, reports
// that, and tries again.
absl::StatusOr<std::unique_ptr<Process>> Create(std::string_view name, const v1::Config& config,
                                                const ProcessFactory& create) {
  constexpr absl::Duration kLongest = absl::Seconds(10);
  constexpr absl::Duration kLongestPause = absl::Seconds(8);
  absl::Duration pause = absl::Milliseconds(500);  // long, because a try may read a large model
  std::string told;
  while (true) {
    absl::Status status = MakeDirectories(config);
    if (status.ok()) {
      auto process = create(config);
      if (!absl::IsResourceExhausted(process.status())) return process;
      status = process.status();
    }
    if (!absl::IsResourceExhausted(status)) return status;
    const std::string reason = absl::StrCat("waits for room: ", status.message(),
                                            "; continues by itself when there is some");
    if (std::exchange(told, reason) != reason) spdlog::error("{}", reason);
    sd_notifyf(0, "STATUS=%s", reason.c_str());
    WaitForChange(name, config, reason, pause, kLongest, /*for_room=*/true);
    pause = std::min(pause * 2, kLongestPause);
  }
}

// Tells systemd's status when that has changed.
void TellReadiness(const std::string& why, std::string* told) {
  if (why == *told) return;
  *told = why;
  sd_notifyf(0, "STATUS=%s%s", why.empty() ? "ready" : "NOT_SERVING: ", why.c_str());
}

// Tells how many errors the configuration has, with the flags of this process, whenever its file
// has changed.
class ConfigWatch {
 public:
  // `tell`: null for nobody.
  ConfigWatch(const Flags& flags, std::function<void(size_t errors)> tell)
      : flags_(flags),
        file_(flags.config_path.empty() ? kDefaultConfigPath : flags.config_path),
        tell_(std::move(tell)) {}

  void Look() {
    if (tell_ == nullptr) return;
    struct stat info {};
    if (stat(file_.c_str(), &info) != 0) info = {};  // it may be missing
    const Version now{info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    if (std::exchange(told_, now) == now) return;
    const absl::StatusOr<CheckedConfig> checked = CheckConfig(flags_.config_path, flags_.overrides);
    tell_(checked.ok() ? checked->problems.size() : 1);
  }

 private:
  using Version = std::tuple<ino_t, off_t, time_t, int64_t>;

  const Flags& flags_;
  const std::string file_;
  const std::function<void(size_t errors)> tell_;
  std::optional<Version> told_;
};

// What WaitForSignal returns besides a signal.
constexpr int kCreateAnew = 0;
constexpr int kNewProgram = -1;

// Feeds the watchdog until a signal that ends the process, which it returns, or until the process
// must be created anew, or the program begin anew.
int WaitForSignal(const sigset_t& signals, Process* process, StartTries* tries,
                  const Flags& flags) {
  const absl::Duration watchdog = WatchdogPeriod();
  const bool watched = watchdog > absl::ZeroDuration();
  const timespec period =
      absl::ToTimespec(watched ? std::min(watchdog, absl::Seconds(1)) : absl::Seconds(1));
  bool progressed = true;
  HangWatch hang;
  ConfigWatch configuration(flags, process->ConfigErrorSink());
  std::string not_ready;
  const absl::Time served = absl::Now() + kStarted;
  bool serves = tries == nullptr;
  while (true) {
    if (!serves && absl::Now() >= served) {
      tries->Served();
      serves = true;
    }
    const int signal = sigtimedwait(&signals, nullptr, &period);
    if (signal > 0 && EndsProcess(signal)) return signal;
    if (const std::string why = process->MustBeginAnew(); !why.empty()) {
      spdlog::info("{}: finishing running calls, then begins anew", why);
      sd_notifyf(0, "STATUS=%s: finishing running calls", why.c_str());
      return kNewProgram;
    }
    if (const absl::Status why = process->MustRestart(); !why.ok()) {
      spdlog::error("starts anew: {}", std::string(why.message()));
      sd_notifyf(0, "STATUS=starts anew: %s", std::string(why.message()).c_str());
      return kCreateAnew;
    }
    TellReadiness(process->WhyNotReady(), &not_ready);
    configuration.Look();
    const bool progresses = process->MakesProgress() && !hang.Hangs(process->PieceNanos());
    if (progresses && watched) FeedWatchdog();
    if (progresses != progressed) {
      progresses ? spdlog::info("work advances again") : spdlog::error("work does not advance");
    }
    progressed = progresses;
  }
}

int64_t NanosFromNow(absl::Duration duration) {
  return Clock::Real().SteadyNanos() + absl::ToInt64Nanoseconds(duration);
}

// Running calls get `grace`. What else runs (a slow disk, a peer that does not answer) gets
// kLongestEnd after them: all that must be durable is on the disk by then, and the next start finds
// the rest as after a kill, with `exit_code`. The time is bounded, so the watchdog is fed in any
// case.
void Stop(std::unique_ptr<Process> process, absl::Duration grace, int exit_code) {
  constexpr absl::Duration kLook = absl::Milliseconds(200);
  const absl::Duration watchdog = WatchdogPeriod();
  const bool watched = watchdog > absl::ZeroDuration();
  std::atomic<int64_t> give_up_ns = NanosFromNow(grace + kLongestEnd);
  const Watch watch(watched ? std::min(watchdog, kLook) : kLook, [&give_up_ns, watched, exit_code] {
    if (Clock::Real().SteadyNanos() < give_up_ns) {
      if (watched) FeedWatchdog();
      return;
    }
    spdlog::warn("stopped in the middle of background work: it did not end within {} s",
                 absl::ToInt64Seconds(kLongestEnd));
    _exit(exit_code);
  });
  process->Drain(grace);
  give_up_ns = NanosFromNow(kLongestEnd);
  process.reset();
}

// Replaces the program by itself, with its flags. Descriptors close, and locks with them. Returns
// if that is impossible.
void BeginAnew(char** argv) {
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  SetThreadRole(ThreadRole::kComputes);  // as a program begins
  std::error_code ignored;
  execv(std::filesystem::read_symlink("/proc/self/exe", ignored).c_str(), argv);
  execv("/proc/self/exe", argv);  // the file was replaced
  spdlog::error("cannot begin anew: {}", std::string(ErrnoError("execv").message()));
}

// Of a start that failed; returns if another would not help at once.
void BeginAnewIfAsked(const absl::Status& status, char** argv) {
  if (NamedReason(status) != kBeginAnew) return;
  spdlog::error("begins anew: {}", std::string(status.message()));
  BeginAnew(argv);
}

// Creates the process and tells systemd that it is ready.
absl::StatusOr<std::unique_ptr<Process>> Start(const sigset_t& signals, std::string_view name,
                                               const v1::Config& config,
                                               const ProcessFactory& create) {
  std::optional<Watch> watch(std::in_place, signals, absl::Seconds(1),
                             [timeout = StartTimeoutExtender()]() mutable { timeout.Extend(); });
  absl::StatusOr<std::unique_ptr<Process>> process = Create(name, config, create);
  watch.reset();
  WITHY_RETURN_IF_ERROR(process.status());
  spdlog::info("ready, serves on {}", absl::StrJoin((*process)->addresses(), ", "));
  sd_notify(0, "READY=1\nSTATUS=ready");
  return process;
}

// Says so, waits as `pause` says while clients hear the reason, and lets signals end the process.
void WaitToStart(const sigset_t& signals, std::string_view name, const v1::Config& config,
                 const std::string& reason, absl::Duration pause) {
  spdlog::error("{}", reason);
  sd_notifyf(0, "STATUS=%s", reason.c_str());
  const Watch watch(signals, absl::Seconds(1),
                    [timeout = StartTimeoutExtender()]() mutable { timeout.Extend(); });
  WaitForChange(name, config, reason, std::min(pause, absl::Seconds(2)), pause,
                /*for_room=*/false);
}

std::string Again(const std::string& what, const StartTries& tries, absl::Duration pause) {
  return absl::StrCat(what, " (", tries.in_vain() + 1, " times); starts again in ",
                      absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(100))),
                      ", or when that changes");
}

// Returns the exit code. `tries`: null where nobody starts the process again.
int CannotStart(const sigset_t& signals, std::string_view name, const v1::Config& config,
                const absl::Status& status, StartTries* tries) {
  const std::string what =
      absl::StrCat("cannot start: ", status.ToString(), SandboxHint(status, config));
  if (tries == nullptr || IsWrongConfiguration(status)) {
    spdlog::error("{}", what);
    sd_notifyf(0, "STATUS=%s", what.c_str());
    return IsWrongConfiguration(status) ? kWrongConfiguration : kFailed;
  }
  // It ends afterwards: the next process has the file system as it is then.
  const absl::Duration pause = PauseAfterFailures(tries->in_vain());
  tries->Served();  // unless it is stopped meanwhile
  WaitToStart(signals, name, config, Again(what, *tries, pause), pause);
  tries->Failed();
  return kFailed;
}

// A process that was killed again and again soon after its start waits before the next.
void WaitAfterCrashes(const sigset_t& signals, std::string_view name, const v1::Config& config,
                      const StartTries& tries) {
  const absl::Duration pause =
      tries.crashed() ? PauseAfterCrashes(tries.in_vain()) : absl::ZeroDuration();
  if (pause == absl::ZeroDuration()) return;
  WaitToStart(signals, name, config, Again("ended within a minute of its start", tries, pause),
              pause);
}

// A process that gets no memory ends with a reason, and is started again. Nothing else can be done:
// what allocates has no error for it.
[[noreturn]] void EndWithoutMemory() {
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kWhy = "<3>out of memory: ends, to be started again\n";
    (void)!write(STDERR_FILENO, kWhy.data(), kWhy.size());
    _exit(kFailed);
  } catch (...) {
  }
  std::abort();
}

}  // namespace

int RunDaemon(int argc, char** argv, std::string_view name, const ProcessFactory& create) {
  const std::string binary = BinaryName(name);
  int exit_code = 0;
  const std::optional<Flags> flags = ParseFlags(argc, argv, binary, &exit_code);
  if (!flags.has_value()) return exit_code;
  std::set_terminate(EndWithoutMemory);
  const sigset_t signals = BlockSignals();
  const absl::StatusOr<CheckedConfig> checked = CheckConfig(flags->config_path, flags->overrides);
  const absl::Status wrong = checked.ok() ? JoinProblems(checked->problems) : checked.status();
  if (!checked.ok() || !(wrong.ok() || ServesInSpiteOfErrors(name))) {
    std::fprintf(stderr, "withy-%s: %s\n", binary.c_str(), wrong.ToString().c_str());
    sd_notifyf(0, "STATUS=%s", wrong.ToString().c_str());
    return kWrongConfiguration;
  }
  const proto::Config* const config = &checked->config;
  SetUpLog(binary, config->log_level());
  if (!wrong.ok()) spdlog::error("what is wrong has its default: {}", wrong.ToString());
  std::optional<StartTries> counted;
  if (IsManaged()) counted.emplace(TriesPath(name, *config));
  StartTries* const tries = counted.has_value() ? &*counted : nullptr;
  if (tries != nullptr) WaitAfterCrashes(signals, name, *config, *tries);
  absl::StatusOr<std::unique_ptr<Process>> process = Start(signals, name, *config, create);
  if (!process.ok()) {
    BeginAnewIfAsked(process.status(), argv);
    return CannotStart(signals, name, *config, process.status(), tries);
  }
  if (!wrong.ok())
    sd_notifyf(0, "STATUS=ready, but not as configured: %s", wrong.ToString().c_str());
  int signal = WaitForSignal(signals, process->get(), tries, *flags);
  while (signal == kCreateAnew) {
    Stop(*std::move(process), absl::ZeroDuration(), kFailed);
    process = Start(signals, name, *config, create);
    if (!process.ok()) BeginAnewIfAsked(process.status(), argv);
    if (!process.ok()) return CannotStart(signals, name, *config, process.status(), tries);
    signal = WaitForSignal(signals, process->get(), tries, *flags);
  }
  if (tries != nullptr) tries->Served();
  const absl::Duration grace = absl::Seconds(config->orchestrator().drain_s());
  if (signal == kNewProgram) {
    if (tries != nullptr) tries->Served();
    Stop(*std::move(process), grace, kFailed);
    BeginAnew(argv);
    return kFailed;
  }
  spdlog::info("{}: finishing running calls, at most {} s", strsignal(signal),
               config->orchestrator().drain_s());
  sd_notify(0, "STOPPING=1\nSTATUS=draining");
  Stop(*std::move(process), grace, 0);
  spdlog::info("stopped");
  return 0;
}

void FillProcessStatus(std::string_view process, v1::ProcessStatus* status) {
  status->set_process(std::string(process));
  status->set_pid(getpid());
  status->set_version(WITHY_VERSION);
  status->set_uptime_s(static_cast<double>(Clock::Real().SteadyNanos() - kStartedNanos) /
                       kNanosPerSecond);
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0, resident_pages = 0;
  if (statm >> total_pages >> resident_pages) {
    status->set_resident_bytes(resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  }
}

}  // namespace withy::rpc
