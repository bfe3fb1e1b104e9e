// A small line chart as SVG, for reports. Neighbours: svg_page.h has what charts share; bar_chart.h
// compares parts.
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
    // Low and high of each point, drawn as a band behind the line; empty: none.
    std::vector<std::pair<double, double>> band = {};
    bool dashed = false;
  };
  std::string title, x_label, y_label;
  std::vector<Line> lines;
  bool y_from_zero = true;  // false: starts at the smallest value
  // Logarithmic axes; values that are not above zero are left out. With y_log nothing starts at
  // zero.
  bool x_log = false;
  bool y_log = false;

  // The axes span points and bands. The first line is drawn thicker. Points that are not finite are
  // left out.
  std::string Svg() const;
  // Errors: of the file system, naming `path`.
  absl::Status Write(const std::string& path) const;
};

}  // namespace withy
