#include "rpc/daemon.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "withy/v1/types.pb.h"

namespace withy::rpc {
namespace {

// Exit codes beside 0. The systemd units do not start a process again that ends with the second.
constexpr int kFailed = 1;
constexpr int kWrongConfiguration = 2;
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

// Empty: the process is to exit with *exit_code.
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

void SetUpLog(const std::string& name, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(name);
  // Under systemd the journal has the time already.
  logger->set_pattern(std::getenv("JOURNAL_STREAM") != nullptr ? "%l %v"
                                                               : "%Y-%m-%d %H:%M:%S.%e %n %l %v");
  logger->set_level(spdlog::level::from_str(level));  // FillDefaults has checked it
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

absl::Status MakeDirectory(const char* field, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("cannot make ", field, " ", path, ": choose another ", field,
                                  ", or make it for user ", geteuid()));
}

// Leaves the process with a umask under which its files are its user's alone. Before any thread.
absl::Status MakeDirectories(const v1::Config& config) {
  umask(0077);
  WITHY_RETURN_IF_ERROR(MakeDirectory("state_dir", config.state_dir()));
  // Apps of other users look for the orchestrator's socket there.
  umask(0022);
  const absl::Status made = MakeDirectory("run_dir", config.run_dir());
  umask(0077);
  return made;
}

// Whether starting again cannot help: what was configured is wrong, is not there or is not
// supported.
bool IsWrongConfiguration(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsUnimplemented(status);
}

// Signals are taken by sigtimedwait on the main thread; all other threads inherit the block.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

absl::StatusOr<std::unique_ptr<Process>> Create(const v1::Config& config,
                                                const ProcessFactory& create) {
  WITHY_RETURN_IF_ERROR(MakeDirectories(config));
  return create(config);
}

// Feeds the watchdog until a signal comes; returns it.
int WaitForSignal(const sigset_t& signals, Process* process) {
  uint64_t watchdog_us = 0;
  const bool watched = sd_watchdog_enabled(0, &watchdog_us) > 0;
  const int64_t period_ns =
      watched ? static_cast<int64_t>(watchdog_us) * 1000 / 3 : kNanosPerSecond;
  const timespec period{period_ns / kNanosPerSecond, period_ns % kNanosPerSecond};
  bool progressed = true;
  while (true) {
    const int signal = sigtimedwait(&signals, nullptr, &period);
    if (signal > 0) return signal;
    const bool progresses = process->MakesProgress();
    if (progresses && watched) sd_notify(0, "WATCHDOG=1");
    if (progresses != progressed) {
      progresses ? spdlog::info("work advances again") : spdlog::error("work does not advance");
    }
    progressed = progresses;
  }
}

}  // namespace

int RunDaemon(int argc, char** argv, std::string_view name, const ProcessFactory& create) {
  const std::string binary = BinaryName(name);
  int exit_code = 0;
  const std::optional<Flags> flags = ParseFlags(argc, argv, binary, &exit_code);
  if (!flags.has_value()) return exit_code;
  const sigset_t signals = BlockSignals();
  const absl::StatusOr<proto::Config> config = LoadConfig(flags->config_path, flags->overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "withy-%s: %s\n", binary.c_str(), config.status().ToString().c_str());
    return kWrongConfiguration;
  }
  SetUpLog(binary, config->log_level());
  absl::StatusOr<std::unique_ptr<Process>> process = Create(*config, create);
  if (!process.ok()) {
    spdlog::error("cannot start: {}", process.status().ToString());
    sd_notifyf(0, "STATUS=cannot start: %s", std::string(process.status().message()).c_str());
    return IsWrongConfiguration(process.status()) ? kWrongConfiguration : kFailed;
  }
  spdlog::info("ready, serves on {}", absl::StrJoin((*process)->addresses(), ", "));
  sd_notify(0, "READY=1\nSTATUS=ready");
  const int signal = WaitForSignal(signals, process->get());
  spdlog::info("{}: finishing running calls, at most {} s", strsignal(signal),
               config->orchestrator().drain_s());
  sd_notify(0, "STOPPING=1\nSTATUS=draining");
  (*process)->Drain(absl::Seconds(config->orchestrator().drain_s()));
  process->reset();
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
