#include "base/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace withy {
namespace {

constexpr double kWidth = 640, kHeight = 400, kLeft = 60, kTop = 30, kRight = 170, kBottom = 50;
constexpr std::array<const char*, 8> kColours = {"#1b6ca8", "#c0392b", "#27ae60", "#8e44ad",
                                                 "#d35400", "#16a085", "#7f8c8d", "#2c3e50"};
constexpr int kTicks = 5;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Makes the range non-empty, because it is a divisor.
  void Open() {
    if (!(low < high)) {
      if (!std::isfinite(low)) low = high = 0;
      high = low + 1;
    }
  }
  double Place(double value) const { return (value - low) / (high - low); }
  double Tick(int i) const { return low + (high - low) * i / kTicks; }
};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, const std::string& text, const char* more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, more, Escaped(text));
}

}  // namespace

std::string LineChart::Svg() const {
  Range x_range, y_range;
  for (const Line& line : lines) {
    for (const auto& [x, y] : line.points) {
      x_range.Add(x);
      y_range.Add(y);
    }
  }
  if (y_from_zero) y_range.Add(0);
  x_range.Open();
  y_range.Open();
  const auto at_x = [&](double x) { return kLeft + (kWidth - kLeft - kRight) * x_range.Place(x); };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * y_range.Place(y);
  };
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += Text(kLeft, 18, title, "font-size=\"13\"");
  for (int i = 0; i <= kTicks; ++i) {
    const double y = y_range.Tick(i);
    const double x = x_range.Tick(i);
    svg += absl::StrFormat("<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>\n", kLeft, at_y(y),
                           kWidth - kRight);
    svg += Text(kLeft - 6, at_y(y) + 4, absl::StrFormat("%.3g", y), "text-anchor=\"end\"");
    svg +=
        Text(at_x(x), kHeight - kBottom + 16, absl::StrFormat("%.3g", x), "text-anchor=\"middle\"");
  }
  svg += Text(kLeft, kHeight - 12, x_label);
  svg += Text(8, kTop - 4, y_label);
  for (size_t i = 0; i < lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string points;
    for (const auto& [x, y] : lines[i].points)
      points += absl::StrFormat("%.1f,%.1f ", at_x(x), at_y(y));
    svg += absl::StrFormat(
        "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" points=\"%s\"/>\n", colour,
        i == 0 ? 2.5 : 1.5, points);
    svg += Text(kWidth - kRight + 12, kTop + 14 + 15 * static_cast<double>(i), lines[i].name,
                absl::StrFormat("fill=\"%s\"", colour).c_str());
  }
  return svg + "</svg>\n";
}

absl::Status LineChart::Write(const std::string& path) const {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << Svg();
  out.close();
  if (!out) return ErrnoError("write " + path);
  return absl::OkStatus();
}

}  // namespace withy
