// A small line chart as SVG, for reports.
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
  bool y_from_zero = true;  // false: starts at the smallest value

  // The axes span the points. The first line is drawn thicker.
  std::string Svg() const;
  // Errors: of the file system, naming `path`.
  absl::Status Write(const std::string& path) const;
};

}  // namespace withy
