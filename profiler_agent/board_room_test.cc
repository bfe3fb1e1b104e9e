#include "profiler_agent/board_room.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "base/clock.h"

namespace withy::profiler_agent {
namespace {

class BoardRoomTest : public testing::Test {
 protected:
  int64_t Disk() {
    return recorder_->gauge({.name = "withy_board_disk_free_bytes", .help = ""}).value();
  }

  std::unique_ptr<telemetry::Recorder> recorder_ = telemetry::Recorder::Disabled();
};

TEST_F(BoardRoomTest, TellsWhatIsLeft) {
  BoardRoom room(testing::TempDir(), *recorder_);
  room.Look(kNanosPerSecond);
  const auto free = static_cast<int64_t>(std::filesystem::space(testing::TempDir()).available);
  EXPECT_GT(Disk(), free / 2);
  EXPECT_LT(Disk(), 2 * free);
  EXPECT_GT(recorder_->gauge({.name = "withy_board_memory_free_bytes", .help = ""}).value(), 0);
}

TEST_F(BoardRoomTest, LooksNowAndThen) {
  BoardRoom room(testing::TempDir(), *recorder_);
  room.Look(kNanosPerSecond);
  recorder_->gauge({.name = "withy_board_disk_free_bytes", .help = ""}).Set(-1);
  room.Look(2 * kNanosPerSecond);
  EXPECT_EQ(Disk(), -1);
  room.Look(11 * kNanosPerSecond);
  EXPECT_GT(Disk(), 0);
}

TEST_F(BoardRoomTest, ADirectoryThatIsGoneIsNoFigure) {
  BoardRoom room("/nonexistent/withy", *recorder_);
  room.Look(kNanosPerSecond);
  EXPECT_EQ(Disk(), 0);
}

}  // namespace
}  // namespace withy::profiler_agent
