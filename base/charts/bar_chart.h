// Stacked horizontal bars as SVG, for reports: what a whole consists of, one bar beside the other.
// Neighbours: svg_page.h has what charts share; line_chart.h draws curves.
#pragma once

#include <string>
#include <vector>

namespace withy {

struct BarChart {
  struct Bar {
    std::string name;
    std::vector<double> parts;  // [parts of the chart], not negative
  };
  std::string title, x_label;
  std::vector<std::string> parts;  // names, in the order in which they are stacked
  std::vector<Bar> bars;           // from the top

  // The axis spans zero to the longest bar. Parts that are not above zero, or not finite, are left
  // out.
  std::string Svg() const;
};

}  // namespace withy
