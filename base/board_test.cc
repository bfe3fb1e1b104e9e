#include "base/board.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

class BoardTest : public testing::Test {
 protected:
  BoardTest() : root_(testing::TempDir() + "withy_board_" + std::to_string(getpid())) {}
  ~BoardTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_;
};

TEST_F(BoardTest, APersonalComputer) {
  Write("/proc/cpuinfo",
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\n"
        "processor\t: 1\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\n");
  Write("/proc/loadavg", "1.25 0.50 0.10 1/100 4242\n");
  const BoardInfo board = ReadBoard(root_);
  EXPECT_EQ(board.processor, "AMD EPYC (family 25, model 1)");
  EXPECT_EQ(board.cores, 2u);
  EXPECT_EQ(board.load_average, 1.25);
  EXPECT_EQ(board.governor, "");
  EXPECT_EQ(board.max_khz, 0u);
}

TEST_F(BoardTest, AnArmBoardWithTwoKindsOfCores) {
  Write("/proc/cpuinfo",
        "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\n"
        "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd41\n\n"
        "processor\t: 2\nCPU implementer\t: 0x41\nCPU part\t: 0xd41\n\n");
  Write("/proc/device-tree/model", std::string("Some Board 5\0", 13));
  Write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n");
  Write("/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "1800000\n");
  Write("/sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq", "2400000\n");
  const BoardInfo board = ReadBoard(root_);
  EXPECT_EQ(board.processor,
            "Some Board 5, implementer 0x41 part 0xd05, implementer 0x41 part 0xd41");
  EXPECT_EQ(board.cores, 3u);
  EXPECT_EQ(board.governor, "schedutil");
  EXPECT_EQ(board.max_khz, 2400000u);
}

TEST_F(BoardTest, NothingToRead) {
  const BoardInfo board = ReadBoard(root_ + "/nowhere");
  EXPECT_EQ(board.processor, "unknown processor");
  EXPECT_EQ(board.cores, 1u);
}

}  // namespace
}  // namespace withy
