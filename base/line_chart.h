// A small line chart as SVG, for reports. Knows nothing of what it shows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace withy {

struct LineChart {
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;  // ascending x
  };
  std::string title, x_label, y_label;
  std::vector<Line> lines;
  bool y_from_zero = true;  // else from the smallest value

  // Axes span the points. The first line is drawn heavier.
  std::string Svg() const;
  // Errors: from the disk, naming `path`.
  absl::Status Write(const std::string& path) const;
};

}  // namespace withy
