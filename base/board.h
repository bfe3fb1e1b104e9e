// What the board is, as far as it changes how long computing takes: processor, cores, power mode,
// load. Read from /proc and /sys. Neighbours: wire/calibration.h keys measurements by it.
// Changes nothing.
#pragma once

#include <cstdint>
#include <string>

namespace withy {

struct BoardInfo {
  // As the system names it, with family and model where it says so, and the board's own name
  // (device tree) in front where it has one. "unknown processor" when nothing is said.
  std::string processor = {};
  uint32_t cores = 0;         // switched on; at least 1
  std::string governor = {};  // of the first core's frequency; empty where none is shown
  uint64_t max_khz = 0;     // the highest frequency that any core may choose; 0 where none is shown
  double load_average = 0;  // of the last minute: threads that ran or wanted to
};

// `root` stands before /proc and /sys: "" is this board. What cannot be read is left as above.
BoardInfo ReadBoard(const std::string& root = "");

}  // namespace withy
