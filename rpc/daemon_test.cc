// Tests of RunDaemon, each in its own process: exit codes, directories, file modes, the log.
#include "rpc/daemon.h"

#include <grpcpp/grpcpp.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/config.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/process_watch.h"
#include "rpc/start_tries.h"
#include "rpc/start_wait.h"
#include "withy/v1/model_worker.grpc.pb.h"

namespace withy::rpc {
namespace {

namespace fs = std::filesystem;
using ::testing::ExitedWithCode;

// Ends as soon as it is ready.
class ShortProcess final : public Process {
 public:
  ShortProcess() { raise(SIGTERM); }  // blocked: RunDaemon takes it when it waits
  void Drain(absl::Duration /*grace*/) override {}
  std::vector<std::string> addresses() const override { return {"unix:/a", "127.0.0.1:1"}; }
};

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() {
    char pattern[] = "/tmp/withy-daemon-XXXXXX";
    dir_ = mkdtemp(pattern);
  }
  ~DaemonTest() override { fs::remove_all(dir_); }

  // Runs RunDaemon and exits with its exit code.
  [[noreturn]] void Run(const std::vector<std::string>& overrides, const ProcessFactory& create) {
    std::vector<std::string> arguments = {"withy-test",
                                          "--config",
                                          "/dev/null",
                                          "--set",
                                          "run_dir=" + dir_ + "/run",
                                          "--set",
                                          "state_dir=" + dir_ + "/state"};
    for (const std::string& assignment : overrides) {
      arguments.insert(arguments.end(), {"--set", assignment});
    }
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    std::exit(RunDaemon(static_cast<int>(argv.size()), argv.data(), "test_process", create));
  }
  [[noreturn]] void RunFailing(const absl::Status& status) {
    Run({}, [&](const v1::Config&) { return status; });
  }
  static absl::StatusOr<std::unique_ptr<Process>> Succeed(const v1::Config& /*config*/) {
    return std::make_unique<ShortProcess>();
  }
  unsigned ModeOf(const std::string& name) const {
    struct stat info {};
    EXPECT_EQ(stat((dir_ + "/" + name).c_str(), &info), 0) << name;
    return info.st_mode & 07777;
  }

  std::string dir_;
};

TEST_F(DaemonTest, AReadyProcessNamesItsAddresses) {
  EXPECT_EXIT(Run({}, Succeed), ExitedWithCode(0), "ready, serves on unix:/a, 127.0.0.1:1");
}

TEST_F(DaemonTest, AWrongConfigurationEndsWithACodeOfItsOwn) {
  EXPECT_EXIT(Run({"log_level=loud"}, Succeed), ExitedWithCode(2), "log_level is .loud.");
  EXPECT_EXIT(Run({"model.threads=5000"}, Succeed), ExitedWithCode(2), "model.threads is 5000");
  EXPECT_EXIT(Run({"model.thread=5"}, Succeed), ExitedWithCode(2), "no field 'thread'");
  EXPECT_EXIT(RunFailing(absl::InvalidArgumentError("window")), ExitedWithCode(2), "window");
  EXPECT_EXIT(RunFailing(absl::UnimplementedError("model")), ExitedWithCode(2), "model");
}

// Whoever watches the board needs its metrics then.
TEST_F(DaemonTest, TheProfilerAgentServesInSpiteOfAWrongConfiguration) {
  const std::string file = dir_ + "/withy.textproto";
  std::ofstream(file) << "model { thread: 5 }\nstate_dir: \"" << dir_ << "/state\" run_dir: \""
                      << dir_ << "/run\" store { arena_bytes: 5 }\n";
  const auto run = [&](std::string_view name) {
    std::vector<std::string> words = {"withy-test", "--config", file};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    std::exit(RunDaemon(static_cast<int>(argv.size()), argv.data(), name, Succeed));
  };
  const char* both = "\"thread\".*store.arena_bytes is 5";
  EXPECT_EXIT(run("profiler_agent"), ExitedWithCode(0), both);
  EXPECT_EXIT(run("context_store"), ExitedWithCode(2), both);
}

// Ends once it is told of errors.
class ConfigWatchingProcess final : public Process {
 public:
  explicit ConfigWatchingProcess(std::string file) : file_(std::move(file)) {}
  void Drain(absl::Duration /*grace*/) override {}
  std::vector<std::string> addresses() const override { return {}; }
  std::function<void(size_t errors)> ConfigErrorSink() override {
    return [this](size_t errors) {
      std::fprintf(stderr, "told: %zu errors;", errors);
      if (errors > 0) raise(SIGTERM);
      std::ofstream(file_, std::ios::app) << "model { thread: 5 } store { arena_bytes: 5 }";
    };
  }

 private:
  const std::string file_;
};

TEST_F(DaemonTest, AConfigurationThatHasBecomeWrongIsToldToARunningProcess) {
  const std::string file = dir_ + "/withy.textproto";
  std::ofstream(file) << "state_dir: \"" << dir_ << "/state\" run_dir: \"" << dir_ << "/run\" ";
  const auto run = [&] {
    // What the flags set is right, whatever the file says.
    std::vector<std::string> words = {"withy-test", "--config", file, "--set", "model.threads=1"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    std::exit(RunDaemon(static_cast<int>(argv.size()), argv.data(), "test_process",
                        [&](const v1::Config&) -> absl::StatusOr<std::unique_ptr<Process>> {
                          return std::make_unique<ConfigWatchingProcess>(file);
                        }));
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "told: 0 errors;.*told: 2 errors;");
}

TEST_F(DaemonTest, AnyOtherFailureEndsWithOne) {
  EXPECT_EXIT(RunFailing(absl::AlreadyExistsError("taken")), ExitedWithCode(1), "taken");
  EXPECT_EXIT(RunFailing(absl::UnavailableError("gone")), ExitedWithCode(1), "gone");
  EXPECT_EXIT(RunFailing(absl::NotFoundError("model")), ExitedWithCode(1), "model");
}

// Under systemd a process waits before it ends: each time longer, but not past what it waits for.
TEST_F(DaemonTest, AManagedProcessThatCannotStartWaitsAndEndsWithOne) {
  const auto run = [this](const absl::Status& status) {
    setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
    setenv("RUNTIME_DIRECTORY", dir_.c_str(), 1);
    RunFailing(status);
  };
  EXPECT_EXIT(run(absl::NotFoundError("the disk")), ExitedWithCode(1),
              "cannot start: NOT_FOUND: the disk .1 times.; starts again in 500ms");
  EXPECT_EXIT(run(absl::NotFoundError("the disk")), ExitedWithCode(1),
              "the disk .2 times.; starts again in 1s");
  EXPECT_EXIT(run(absl::InvalidArgumentError("window")), ExitedWithCode(2), "window");
  EXPECT_TRUE(fs::exists(dir_ + "/test_process.starts"));
}

TEST_F(DaemonTest, WhatAUnitHidesIsSaidWhereItMayBeTheCause) {
  const auto run = [this](const absl::Status& status, const std::string& model) {
    setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
    Run({"model.path=" + model}, [&](const v1::Config&) { return status; });
  };
  EXPECT_EXIT(run(absl::PermissionDeniedError("open /home/m/a.gguf"), "/home/m/a.gguf"),
              ExitedWithCode(1),
              "the unit hides /home/ .ProtectHome.*config install FILE. lets /home/m/a.gguf in");
  EXPECT_EXIT(run(absl::PermissionDeniedError("open"), "/data/a.gguf"), ExitedWithCode(1),
              "the user withy must be able to read it");
}

TEST_F(DaemonTest, PausesGrowToAMinuteAndCrashesHaveNoneAtFirst) {
  EXPECT_EQ(PauseAfterFailures(0), absl::Milliseconds(500));
  EXPECT_EQ(PauseAfterFailures(3), absl::Seconds(4));
  EXPECT_EQ(PauseAfterFailures(100), absl::Minutes(1));
  EXPECT_EQ(PauseAfterCrashes(4), absl::ZeroDuration());
  EXPECT_EQ(PauseAfterCrashes(6), absl::Seconds(1));
}

TEST_F(DaemonTest, StartsInVainAreCountedUntilOneServes) {
  const std::string path = dir_ + "/starts";
  EXPECT_EQ(StartTries(path).in_vain(), 0u);
  StartTries second(path);
  EXPECT_EQ(second.in_vain(), 1u);
  EXPECT_TRUE(second.crashed()) << "nobody said that the first failed";
  second.Failed();
  StartTries third(path);
  EXPECT_EQ(third.in_vain(), 2u);
  EXPECT_FALSE(third.crashed());
  third.Served();
  EXPECT_EQ(StartTries(path).in_vain(), 0u);
  EXPECT_EQ(StartTries("/nonexistent/starts").in_vain(), 0u);
}

// The model is there: the wait ends long before its time.
TEST_F(DaemonTest, AWaitEndsWhenWhatItWaitsForIsThere) {
  v1::Config config;
  config.set_state_dir(dir_);
  config.set_run_dir(dir_);
  config.mutable_model()->set_path(dir_ + "/model.gguf");
  config.mutable_model()->set_listen("unix:" + dir_ + "/worker.sock");
  const auto wait = [&] {
    std::thread comes([&] {
      while (!fs::exists(dir_ + "/worker.sock")) std::this_thread::yield();
      std::ofstream(dir_ + "/model.gguf") << "here";
    });
    const absl::Time began = absl::Now();
    WaitForChange("model_worker", config, "the model is missing", absl::ZeroDuration(),
                  absl::Minutes(10), /*for_room=*/false);
    comes.join();
    std::exit(absl::Now() - began < absl::Minutes(5) ? 0 : 1);
  };
  EXPECT_EXIT(wait(), ExitedWithCode(0), "");
}

TEST_F(DaemonTest, ALongStartSaysHowFarItIs) {
  fs::create_directories(dir_ + "/run");
  v1::Config config;
  config.set_run_dir(dir_ + "/run");
  config.set_state_dir(dir_ + "/state");
  ASSERT_TRUE(FillDefaults(&config).ok());
  const auto channel = Connect(config.model().listen());
  const auto answer = [&] {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    context.set_wait_for_ready(true);
    v1::GetWorkerInfoResponse info;
    return v1::ModelWorker::NewStub(channel)
        ->GetWorkerInfo(&context, v1::GetWorkerInfoRequest(), &info)
        .error_message();
  };
  {
    StartReport report("model_worker", config);
    report.Tell("packs a.gguf: 10 %");
    EXPECT_EQ(answer(), "packs a.gguf: 10 %");
    report.Tell("packs a.gguf: 11 %");
    EXPECT_EQ(answer(), "packs a.gguf: 11 %");
  }
  // The process's own server has the socket then.
  const auto server = Server::Start(ServerOf("model_worker", config), {});
  EXPECT_TRUE(server.ok()) << server.status();
}

TEST_F(DaemonTest, SignalsDrainAreNotedOrAreIgnored) {
  // During start these signals would end the process, so they are sent once it is ready.
  class Late final : public Process {
   public:
    explicit Late(std::vector<int> signals) : signals_(std::move(signals)) {}
    bool MakesProgress() override {
      for (const int signal : std::exchange(signals_, {})) kill(getpid(), signal);
      return true;
    }
    void Drain(absl::Duration /*grace*/) override { std::fprintf(stderr, "drained\n"); }
    std::vector<std::string> addresses() const override { return {}; }

   private:
    std::vector<int> signals_;
  };
  for (const int ends : {SIGTERM, SIGINT, SIGQUIT}) {
    const auto create = [ends](const v1::Config& /*config*/) {
      return std::make_unique<Late>(
          std::vector<int>{SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ, ends});
    };
    EXPECT_EXIT(Run({}, create), ExitedWithCode(0), "drained") << strsignal(ends);
  }
  const auto hang_up = [](const v1::Config& /*config*/) {
    return std::make_unique<Late>(std::vector<int>{SIGHUP, SIGTERM});
  };
  EXPECT_EXIT(Run({}, hang_up), ExitedWithCode(0), "Hangup: ignored");
}

// A process that cannot go on is drained without grace and created anew, in the same process.
TEST_F(DaemonTest, AProcessThatMustRestartIsCreatedAnew) {
  class Damaged final : public Process {
   public:
    absl::Status MustRestart() override { return absl::DataLossError("weights are damaged"); }
    void Drain(absl::Duration grace) override {
      std::fprintf(stderr, "drained within %d s\n", static_cast<int>(absl::ToInt64Seconds(grace)));
    }
    std::vector<std::string> addresses() const override { return {}; }
  };
  int created = 0;
  const auto create = [&](const v1::Config& /*config*/) -> std::unique_ptr<Process> {
    if (++created < 3) return std::make_unique<Damaged>();
    return std::make_unique<ShortProcess>();
  };
  EXPECT_EXIT(Run({}, create), ExitedWithCode(0),
              "starts anew: weights are damaged\n.*drained within 0 s\n");
  const auto fail = [&](const v1::Config& /*config*/) -> absl::StatusOr<std::unique_ptr<Process>> {
    if (++created % 2 == 1) return std::make_unique<Damaged>();
    return absl::NotFoundError("the GGUF is gone");
  };
  created = 0;
  EXPECT_EXIT(Run({}, fail), ExitedWithCode(1), "cannot start: NOT_FOUND: the GGUF is gone");
}

TEST_F(DaemonTest, ASignalEndsAStartAtOnce) {
  const auto create = [](const v1::Config& /*config*/) -> absl::StatusOr<std::unique_ptr<Process>> {
    kill(getpid(), SIGTERM);
    while (true) pause();
  };
  EXPECT_EXIT(Run({}, create), ExitedWithCode(0), "during start: stopped");
}

// As one whose disk does not answer.
TEST_F(DaemonTest, WorkThatDoesNotEndIsNotWaitedFor) {
  class Endless final : public Process {
   public:
    Endless() { raise(SIGTERM); }
    ~Endless() override {
      while (true) pause();
    }
    void Drain(absl::Duration /*grace*/) override {}
    std::vector<std::string> addresses() const override { return {}; }
  };
  const auto create = [](const v1::Config& /*config*/) { return std::make_unique<Endless>(); };
  EXPECT_EXIT(Run({}, create), ExitedWithCode(0), "stopped in the middle of background work");
}

TEST_F(DaemonTest, AProcessWithoutRoomWaitsAndIsThereOnceThereIsSome) {
  int tries = 0;
  const auto create = [&](const v1::Config& config) -> absl::StatusOr<std::unique_ptr<Process>> {
    if (++tries < 3) {
      std::ofstream(config.state_dir() + "/file" + std::to_string(tries)) << "room changes";
      return absl::ResourceExhaustedError("disk full: 0 bytes free under /x");
    }
    return std::make_unique<ShortProcess>();
  };
  EXPECT_EXIT(Run({}, create), ExitedWithCode(0),
              "waits for room: disk full: 0 bytes free under /x.*\n.*ready");
}

TEST_F(DaemonTest, WhatStandsInTheWayOfADirectoryIsNamed) {
  std::ofstream(dir_ + "/state") << "notes";
  EXPECT_EXIT(Run({}, Succeed), ExitedWithCode(2), "state_dir .*/state is no directory");
  fs::remove(dir_ + "/state");
  std::ofstream(dir_ + "/run") << "notes";
  EXPECT_EXIT(Run({}, Succeed), ExitedWithCode(2), "run_dir .*/run is no directory");
}

TEST_F(DaemonTest, ARunDirectoryThatCannotBeWrittenIsNamed) {
  const std::string run = dir_ + "/run";
  fs::create_directory(run);
  if (mount("withy-test", run.c_str(), "tmpfs", MS_RDONLY, nullptr) != 0) {
    GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  }
  EXPECT_EXIT(Run({}, Succeed), ExitedWithCode(1), "cannot write run_dir .*/run: choose another");
  umount2(run.c_str(), MNT_DETACH);
}

TEST(HangsTest, OnlyWhatTakesLongAndDoesNothing) {
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_TRUE(Hangs(3 * kSecond, 0.0, false));
  EXPECT_FALSE(Hangs(2 * kSecond, 0.0, false)) << "not long";
  EXPECT_FALSE(Hangs(0, 0.0, false)) << "nothing to do";
  EXPECT_FALSE(Hangs(60 * kSecond, 0.5, false)) << "it computes";
  EXPECT_FALSE(Hangs(60 * kSecond, 0.0, true)) << "it waits for a disk or a core";
}

TEST_F(DaemonTest, APieceOfWorkThatHangsIsSaid) {
  class Hanging final : public Process {
   public:
    int64_t PieceNanos() override {
      if (++asked_ == 2) kill(getpid(), SIGTERM);
      return int64_t{4'000'000'000};
    }
    void Drain(absl::Duration /*grace*/) override {}
    std::vector<std::string> addresses() const override { return {}; }

   private:
    int asked_ = 0;
  };
  const auto create = [](const v1::Config& /*config*/) { return std::make_unique<Hanging>(); };
  EXPECT_EXIT(Run({}, create), ExitedWithCode(0), "work does not advance");
}

int TimesIn(std::string_view text, std::string_view word) {
  int times = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) ++times;
  return times;
}

// What systemd receives from a process that starts slowly, runs, and drains slowly.
TEST_F(DaemonTest, SystemdIsKeptFromShootingABusyProcess) {
  const std::string path = dir_ + "/notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd notify(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(notify.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  // A socket holds few messages that nobody has read, so the process that sends them reads them,
  // too.
  const std::string heard_path = dir_ + "/heard";
  const auto heard_so_far = [&] { return ReadFile(heard_path, 1 << 20).value_or(""); };
  // Works until systemd has heard `word` so often behind `begin`.
  using Work = std::function<void(std::string_view begin, std::string_view word, int times)>;
  const Work work = [&](std::string_view begin, std::string_view word, int times) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (absl::Now() < end) {
      const std::string heard = heard_so_far();
      const size_t from = heard.find(begin);
      if (from != std::string::npos && TimesIn(heard.substr(from), word) >= times) return;
      usleep(10'000);
    }
  };
  class Slow final : public Process {
   public:
    explicit Slow(const Work& work) : work_(work) { work_("", "EXTEND_TIMEOUT_USEC=", 2); }
    bool MakesProgress() override {
      if (++asked_ == 3) kill(getpid(), SIGTERM);
      return true;
    }
    void Drain(absl::Duration /*grace*/) override { work_("STOPPING=1", "WATCHDOG=1", 3); }
    std::vector<std::string> addresses() const override { return {}; }

   private:
    const Work& work_;
    int asked_ = 0;
  };
  const auto create = [&](const v1::Config& /*config*/) { return std::make_unique<Slow>(work); };
  const auto listen = [&](int flags) {
    std::ofstream out(heard_path, std::ios::app);
    char message[512];
    for (ssize_t n; (n = recv(notify.get(), message, sizeof message, flags)) > 0;) {
      out << std::string(message, static_cast<size_t>(n)) << std::endl;
    }
  };
  const auto run = [&] {
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    setenv("WATCHDOG_USEC", "300000", 1);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::thread([&] { listen(0); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    Run({}, create);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
  listen(MSG_DONTWAIT);
  const std::string heard = heard_so_far();
  const size_t ready = heard.find("READY=1"), stopping = heard.find("STOPPING=1");
  ASSERT_NE(stopping, std::string::npos) << heard;
  EXPECT_GE(TimesIn(heard.substr(0, ready), "EXTEND_TIMEOUT_USEC="), 2) << heard;
  EXPECT_GE(TimesIn(heard.substr(ready, stopping - ready), "WATCHDOG=1"), 2) << heard;
  EXPECT_GE(TimesIn(heard.substr(stopping), "WATCHDOG=1"), 3) << heard;
}

TEST_F(DaemonTest, OnlyRunDirIsOpenToOtherUsers) {
  const auto create = [this](const v1::Config& config) {
    std::ofstream(config.state_dir() + "/record") << "a conversation";
    return Succeed(config);
  };
  const mode_t usual = umask(0022);
  EXPECT_EXIT(Run({}, create), ExitedWithCode(0), "");
  umask(usual);
  EXPECT_EQ(ModeOf("run"), 0755u);
  EXPECT_EQ(ModeOf("state"), 0700u);
  EXPECT_EQ(ModeOf("state/record"), 0600u);
}

TEST_F(DaemonTest, ADirectoryThatCannotBeMadeIsNamedWithItsField) {
  std::ofstream(dir_ + "/file") << "in the way";
  EXPECT_EXIT(Run({"state_dir=" + dir_ + "/file/state"}, Succeed), ExitedWithCode(1),
              "cannot make state_dir .*/file/state: choose another state_dir");
}

}  // namespace
}  // namespace withy::rpc
