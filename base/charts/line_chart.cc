#include "base/charts/line_chart.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/charts/svg_page.h"
#include "base/status.h"

namespace withy {
namespace {

constexpr double kHeight = 400, kLeft = 60, kPlotRight = 470, kTop = 30, kBottom = 50;
// The names of lines stand beside the plot.
constexpr double kLeastLegend = 170, kLegendGap = 12, kCharacterWidth = 6.3;
constexpr int kTicks = 7;
constexpr size_t kMostMarks = 32;  // of a line: more would hide it

// One axis: what it spans, and where a value lies on it.
struct Axis {
  bool logarithmic = false;
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool Takes(double value) const { return std::isfinite(value) && (!logarithmic || value > 0); }
  void Add(double value) {
    if (!Takes(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Makes the range non-empty, because it is a divisor.
  void Open() {
    if (low < high) return;
    if (!std::isfinite(low)) low = high = logarithmic ? 1 : 0;
    high = logarithmic ? low * 10 : low + 1;
  }
  double Scaled(double value) const { return logarithmic ? std::log10(value) : value; }
  double Place(double value) const {
    return (Scaled(value) - Scaled(low)) / (Scaled(high) - Scaled(low));
  }
  // Round values; on a logarithmic axis of more than a factor of ten 1, 2 and 5 of each power.
  std::vector<double> Ticks() const {
    if (!logarithmic || high < 10 * low) return RoundTicks(low, high, kTicks);
    std::vector<double> ticks;
    const bool crowded = high > 1e4 * low;
    for (double power = std::floor(std::log10(low)); power <= std::log10(high); ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10.0, power);
        if (tick >= low && tick <= high && (factor == 1 || !crowded)) ticks.push_back(tick);
      }
    }
    return ticks;
  }
};

// A chart's axes on its page.
struct Plot {
  Axis x, y;

  explicit Plot(const LineChart& chart) {
    x.logarithmic = chart.x_log;
    y.logarithmic = chart.y_log;
    for (const LineChart::Line& line : chart.lines) {
      for (const auto& [at, value] : line.points) {
        if (!Takes(at, value)) continue;
        x.Add(at);
        y.Add(value);
      }
      for (const auto& [low, high] : line.band) {
        y.Add(low);
        y.Add(high);
      }
    }
    if (chart.y_from_zero) y.Add(0);
    x.Open();
    y.Open();
  }
  bool Takes(double at, double value) const { return x.Takes(at) && y.Takes(value); }
  double AtX(double value) const { return kLeft + (kPlotRight - kLeft) * x.Place(value); }
  double AtY(double value) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * y.Place(value);
  }
  std::string Point(double at, double value) const {
    return absl::StrFormat("%.1f,%.1f ", AtX(at), AtY(value));
  }
};

double LegendWidth(const LineChart& chart) {
  double width = kLeastLegend;
  for (const LineChart::Line& line : chart.lines) {
    width =
        std::max(width, 2 * kLegendGap + kCharacterWidth * static_cast<double>(line.name.size()));
  }
  return width;
}

void DrawAxes(const LineChart& chart, const Plot& plot, SvgPage* page) {
  page->Text(kLeft, 13, chart.title, TextAnchor::kStart, "title");
  for (const double tick : plot.y.Ticks()) {
    page->Add(absl::StrFormat("<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", kLeft,
                              plot.AtY(tick), kPlotRight));
    page->Text(kLeft - 6, plot.AtY(tick) + 4, TickText(tick), TextAnchor::kEnd);
  }
  for (const double tick : plot.x.Ticks()) {
    page->Add(absl::StrFormat("<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", plot.AtX(tick),
                              kTop, kHeight - kBottom));
    page->Text(plot.AtX(tick), kHeight - kBottom + 16, TickText(tick), TextAnchor::kMiddle);
  }
  page->Text(kLeft, kHeight - 12, chart.x_label);
  page->Text(8, kTop - 4, chart.y_label);
}

void DrawBand(const LineChart::Line& line, const Plot& plot, size_t colour, SvgPage* page) {
  if (line.band.size() != line.points.size()) return;
  std::string above, below;
  for (size_t i = 0; i < line.points.size(); ++i) {
    const double at = line.points[i].first;
    const auto& [low, high] = line.band[i];
    if (!plot.Takes(at, low) || !plot.Takes(at, high)) continue;
    above += plot.Point(at, high);
    below.insert(0, plot.Point(at, low));
  }
  if (above.empty()) return;
  page->Add(absl::StrFormat(
      "<polygon class=\"f%d\" fill-opacity=\"0.2\" stroke=\"none\" points=\"%s%s\"/>\n", colour,
      above, below));
}

void DrawLine(const LineChart::Line& line, const Plot& plot, size_t index, SvgPage* page) {
  const size_t colour = SvgPage::Colour(index);
  DrawBand(line, plot, colour, page);
  std::string points, marks;
  for (const auto& [at, value] : line.points) {
    if (!plot.Takes(at, value)) continue;
    points += plot.Point(at, value);
    marks += absl::StrFormat("<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n", colour,
                             plot.AtX(at), plot.AtY(value));
  }
  page->Add(absl::StrFormat("<polyline class=\"l%d\" stroke-width=\"%.1f\"%s points=\"%s\"/>\n",
                            colour, index == 0 ? 2.5 : 1.5,
                            line.dashed ? " stroke-dasharray=\"5 4\"" : "", points));
  if (!line.dashed && line.points.size() <= kMostMarks) page->Add(marks);
  page->Text(kPlotRight + kLegendGap, kTop + 14 + 15 * static_cast<double>(index), line.name,
             TextAnchor::kStart, absl::StrFormat("f%d", colour));
}

}  // namespace

std::string LineChart::Svg() const {
  const Plot plot(*this);
  SvgPage page(kPlotRight + LegendWidth(*this), kHeight);
  DrawAxes(*this, plot, &page);
  for (size_t i = 0; i < lines.size(); ++i) DrawLine(lines[i], plot, i, &page);
  return page.Finish();
}

absl::Status LineChart::Write(const std::string& path) const {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << Svg();
  out.close();
  if (!out) return ErrnoError("write " + path);
  return absl::OkStatus();
}

}  // namespace withy
