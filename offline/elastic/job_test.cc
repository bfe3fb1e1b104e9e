// withy-elasticize as a program: killed at any point it resumes to the same file; it refuses
// another run's work, estimates its time, and keeps its progress when the disk is full.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "engine/model/testing.h"

namespace withy::elastic {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Limits {
  std::optional<milliseconds> kill_after = std::nullopt;
  std::string kill_once_there = {};  // a file that the program writes
  rlim_t file_bytes = RLIM_INFINITY;
};

struct Outcome {
  bool killed = false;
  int code = -1;
  std::string output;  // stdout and stderr
  milliseconds took{};
};

class ElasticizeTest : public testing::Test {
 protected:
  ElasticizeTest() {
    model_ = engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kF32);
    std::ofstream text(folder_ / "text.txt");
    std::mt19937 random(5);
    for (int i = 0; i < 6000; ++i) text << static_cast<char>('a' + random() % 26);
  }

  // `more` comes last and overrides earlier flags.
  std::vector<std::string> Arguments(const std::string& name,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {WITHY_ELASTICIZE,
                                    "--model=" + model_,
                                    "--out=" + folder_ / (name + ".gguf"),
                                    "--text=" + folder_ / "text.txt",
                                    "--learn=text",
                                    "--cuts=measured",
                                    "--recoveries=2",
                                    "--levels=45,70",
                                    "--calibration_batches=4",
                                    "--recovery_batches=20",
                                    "--recovery_steps=12",
                                    "--trial_steps=4",
                                    "--batch_tokens=128",
                                    "--threads=2",
                                    "--checkpoint_s=0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Outcome Run(std::vector<std::string> arguments, const Limits& limits = {}) const {
    const std::string log = folder_ / "log";
    const auto start = Clock::now();
    const pid_t child = fork();
    if (child == 0) {
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(fd, 1);
      dup2(fd, 2);
      if (limits.file_bytes != RLIM_INFINITY) {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{limits.file_bytes, limits.file_bytes};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    if (limits.kill_after.has_value()) {
      std::this_thread::sleep_for(*limits.kill_after);
      kill(child, SIGKILL);
    }
    if (!limits.kill_once_there.empty()) {
      const Clock::time_point give_up = start + std::chrono::minutes(1);
      while (!std::filesystem::exists(limits.kill_once_there) && Clock::now() < give_up) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return {.killed = WIFSIGNALED(status),
            .code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .output = ReadAll(log),
            .took = std::chrono::duration_cast<milliseconds>(Clock::now() - start)};
  }

  std::string File(const std::string& name) const { return ReadAll(folder_ / (name + ".gguf")); }

  engine::TestFolder folder_;
  std::string model_;
};

TEST_F(ElasticizeTest, KilledAnywhereItGoesOnToTheSameFile) {
  const Outcome whole = Run(Arguments("whole"));
  ASSERT_EQ(whole.code, 0) << whole.output;
  const std::string expected = File("whole");
  ASSERT_FALSE(expected.empty());
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int kills = 0;
  for (int run = 0; run < 2; ++run) {
    const std::string name = "killed" + std::to_string(run);
    Outcome outcome;
    for (int tries = 0; tries < 40; ++tries) {
      std::uniform_int_distribution<int64_t> when(whole.took.count() / 5, whole.took.count());
      outcome = Run(Arguments(name), {.kill_after = milliseconds(when(random))});
      if (!outcome.killed) break;
      ++kills;
      // The file appears whole: a kill may come after that and before the process ends.
      if (std::filesystem::exists(folder_ / (name + ".gguf"))) {
        EXPECT_TRUE(File(name) == expected) << name << " is there and not whole";
      }
    }
    if (outcome.killed) outcome = Run(Arguments(name));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_TRUE(File(name) == expected) << name << " differs";
  }
  EXPECT_GT(kills, 0);
}

// Text that the model writes, its probabilities and estimated cuts.
TEST_F(ElasticizeTest, KilledInItsOwnTextItGoesOnToTheSameFile) {
  const std::vector<std::string> own = {"--text=own", "--learn=teacher", "--cuts=estimated",
                                        "--recoveries=1"};
  const Outcome whole = Run(Arguments("whole", own));
  ASSERT_EQ(whole.code, 0) << whole.output;
  EXPECT_NE(whole.output.find("the cuts that lose least"), std::string::npos) << whole.output;
  for (const char* const there : {"text-recovery.part", "text-recovery.pt", "cuts-70.part"}) {
    std::filesystem::remove_all(folder_ / "killed.gguf.work");
    std::filesystem::remove(folder_ / "killed.gguf");
    Run(Arguments("killed", own),
        {.kill_once_there = folder_ / ("killed.gguf.work/" + std::string(there))});
    const Outcome outcome = Run(Arguments("killed", own));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_TRUE(File("killed") == File("whole")) << there;
  }
}

TEST_F(ElasticizeTest, HoursSayHowMuchIsRecovered) {
  const Outcome outcome =
      Run({WITHY_ELASTICIZE, "--model=" + model_, "--out=" + folder_ / "hours.gguf", "--levels=50",
           "--calibration_batches=4", "--batch_tokens=128", "--hours=0.002"});
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find(" steps of recovery at 50 %"), std::string::npos) << outcome.output;
  EXPECT_LT(outcome.took, std::chrono::minutes(1)) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "hours.gguf.work/plan.pt"));
}

// Runs can therefore move to another machine, and figures do not depend on it.
TEST_F(ElasticizeTest, TheFileDoesNotDependOnThreads) {
  ASSERT_EQ(Run(Arguments("two")).code, 0);
  ASSERT_EQ(Run(Arguments("three", {"--threads=3"})).code, 0);
  EXPECT_TRUE(File("two") == File("three"));
}

TEST_F(ElasticizeTest, SaysHowLongItWillTakeAndEnds) {
  const Outcome outcome = Run(Arguments("estimated", {"--estimate"}));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("about "), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find(" on 2 threads"), std::string::npos) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "estimated.gguf"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "estimated.gguf.work"));
}

TEST_F(ElasticizeTest, NeverSaysThatNothingIsLeftBeforeTheEnd) {
  const Outcome outcome = Run(Arguments("shown"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.find(" 0 s left"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("importance of units, 0 %: "), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find(" for the whole"), std::string::npos) << outcome.output;
}

TEST_F(ElasticizeTest, AnotherRunsWorkIsRefusedByWhatDiffers) {
  const Outcome killed = Run(Arguments("run", {"--recovery_steps=3000"}),
                             {.kill_once_there = folder_ / "run.gguf.work/made-of.txt"});
  ASSERT_TRUE(killed.killed) << killed.output;
  const Outcome outcome = Run(Arguments("run", {"--recovery_steps=10", "--seed=2"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.output.find("--recovery_steps is 10, there 3000; --seed is 2, there 1"),
            std::string::npos)
      << outcome.output;
}

// A limit on file sizes simulates a full disk.
TEST_F(ElasticizeTest, AFullDiskIsSaidAndNothingIsLost) {
  ASSERT_EQ(Run(Arguments("whole")).code, 0);
  const Outcome full = Run(Arguments("full"), {.file_bytes = 60'000});
  EXPECT_EQ(full.code, 1) << full.output;
  EXPECT_NE(full.output.find("free some space"), std::string::npos) << full.output;
  EXPECT_NE(full.output.find(folder_ / "full.gguf"), std::string::npos) << full.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "full.gguf.work/units-100.pt"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "full.gguf.work"))
    EXPECT_NE(entry.path().extension(), ".partial");
  ASSERT_EQ(Run(Arguments("full")).code, 0);
  EXPECT_TRUE(File("full") == File("whole"));
}

TEST_F(ElasticizeTest, QuickIsOtherDefaultsAndOptionsWin) {
  std::vector<std::string> arguments = {WITHY_ELASTICIZE,
                                        "--model=" + model_,
                                        "--out=" + folder_ / "quick.gguf",
                                        "--text=" + folder_ / "text.txt",
                                        "--batch_tokens=128",
                                        "--levels=60",
                                        "--recovery_batches=20",
                                        "--recovery_steps=10",
                                        "--hours=0",
                                        "--quick"};
  const Outcome outcome = Run(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("level 60 %"), std::string::npos) << outcome.output;
  const std::string made_of = ReadAll(folder_ / "quick.gguf.work/made-of.txt");
  EXPECT_NE(made_of.find("--calibration_batches 8\n"), std::string::npos) << made_of;
  EXPECT_NE(made_of.find("--levels 60\n"), std::string::npos) << made_of;
}

}  // namespace
}  // namespace withy::elastic
