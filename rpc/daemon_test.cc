// Tests of what every main does, each in a process of its own: exit codes, directories, file modes,
// the log.
#include "rpc/daemon.h"

#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/config.h"
#include "gtest/gtest.h"

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

  // Runs it as a main does and ends with its exit code.
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
  EXPECT_EXIT(RunFailing(absl::NotFoundError("model")), ExitedWithCode(2), "model");
}

TEST_F(DaemonTest, AnyOtherFailureEndsWithOne) {
  EXPECT_EXIT(RunFailing(absl::AlreadyExistsError("taken")), ExitedWithCode(1), "taken");
  EXPECT_EXIT(RunFailing(absl::ResourceExhaustedError("full")), ExitedWithCode(1), "full");
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
