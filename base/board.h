// Properties of the board that affect computing time: processor, cores, power mode and load. Read
// from /proc and /sys; nothing is changed. Neighbours: wire/calibration.h keys measurements by
// them.
#pragma once

#include <cstdint>
#include <string>

namespace withy {

struct BoardInfo {
  // Name the system reports, with family and model if reported, preceded by the board's own name
  // (device tree) if it has one. "unknown processor" if nothing is reported.
  std::string processor = {};
  uint32_t cores = 0;         // online cores; at least 1
  std::string governor = {};  // frequency governor of the first core; empty if not reported
  uint64_t max_khz = 0;       // highest frequency that any core may choose; 0 if not reported
  double load_average = 0;    // one-minute load average
};

// `root` is prepended to /proc and /sys; "" reads this board. Values that cannot be read keep the
// defaults above.
BoardInfo ReadBoard(const std::string& root = "");

}  // namespace withy
