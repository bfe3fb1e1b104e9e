#include "profiler_agent/board_room.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/memory_limits.h"

namespace withy::profiler_agent {
namespace {

constexpr int64_t kIntervalNs = 10 * kNanosPerSecond;

}  // namespace

BoardRoom::BoardRoom(std::string state_dir, telemetry::Recorder& recorder)
    : state_dir_(std::move(state_dir)), recorder_(recorder) {}

void BoardRoom::Look(int64_t now_ns) {
  if (state_dir_.empty() || (looked_ns_ != 0 && now_ns - looked_ns_ < kIntervalNs)) return;
  looked_ns_ = now_ns;
  std::error_code error;
  const std::filesystem::space_info disk = std::filesystem::space(state_dir_, error);
  if (!error) {
    recorder_
        .gauge({.name = "withy_board_disk_free_bytes",
                .help = "Room on the disk of state_dir.",
                .unit = telemetry::Unit::kBytes})
        .Set(static_cast<int64_t>(disk.available));
  }
  const std::vector<MemoryLimit> limits = MemoryLimits();
  if (!limits.empty() && limits.back().file == kBoardLimit) {  // not what this process may have
    recorder_
        .gauge({.name = "withy_board_memory_free_bytes",
                .help = "Memory that the system can still give.",
                .unit = telemetry::Unit::kBytes})
        .Set(static_cast<int64_t>(limits.back().room_bytes()));
  }
}

}  // namespace withy::profiler_agent
