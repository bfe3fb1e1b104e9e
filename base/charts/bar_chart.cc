#include "base/charts/bar_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/charts/svg_page.h"

namespace withy {
namespace {

constexpr double kPageWidth = 830, kBarsLeft = 260, kBarsRight = 660, kBarsTop = 36;
constexpr double kBarHeight = 20, kBarGap = 10, kLegendLine = 15, kFooter = 40;
constexpr int kBarTicks = 6;

constexpr size_t kNameBytes = 42;  // what has room beside the bars

// The end of a long name says more than its beginning.
std::string Shortened(const std::string& name) {
  if (name.size() <= kNameBytes) return name;
  size_t first = name.size() - kNameBytes;
  while (first < name.size() && (name[first] & 0xC0) == 0x80) ++first;  // within a character
  return "…" + name.substr(first);
}

bool Drawn(double part) { return std::isfinite(part) && part > 0; }

}  // namespace

std::string BarChart::Svg() const {
  double longest = 0;
  for (const Bar& bar : bars) {
    double length = 0;
    for (const double part : bar.parts) length += Drawn(part) ? part : 0;
    longest = std::max(longest, length);
  }
  if (!(longest > 0)) longest = 1;
  const double bars_bottom = kBarsTop + static_cast<double>(bars.size()) * (kBarHeight + kBarGap);
  const double legend_bottom = kBarsTop + static_cast<double>(parts.size()) * kLegendLine;
  const auto at_x = [&](double value) {
    return kBarsLeft + (kBarsRight - kBarsLeft) * value / longest;
  };
  SvgPage page(kPageWidth, std::max(bars_bottom, legend_bottom) + kFooter);
  page.Text(8, 18, title, TextAnchor::kStart, "title");
  for (const double tick : RoundTicks(0, longest, kBarTicks)) {
    page.Add(absl::StrFormat("<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", at_x(tick),
                             kBarsTop - 4, bars_bottom));
    page.Text(at_x(tick), bars_bottom + 12, TickText(tick), TextAnchor::kMiddle);
  }
  page.Text(kBarsLeft, bars_bottom + 28, x_label);
  for (size_t i = 0; i < bars.size(); ++i) {
    const double top = kBarsTop + static_cast<double>(i) * (kBarHeight + kBarGap);
    page.Text(kBarsLeft - 6, top + kBarHeight - 6, Shortened(bars[i].name), TextAnchor::kEnd);
    double begin = 0;
    for (size_t part = 0; part < std::min(bars[i].parts.size(), parts.size()); ++part) {
      if (!Drawn(bars[i].parts[part])) continue;
      const double end = begin + bars[i].parts[part];
      page.Add(absl::StrFormat(
          "<rect class=\"f%d mark\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
          "height=\"%.1f\"><title>%s: %s, %s</title></rect>\n",
          SvgPage::Colour(part), at_x(begin), top, at_x(end) - at_x(begin), kBarHeight,
          EscapedXml(bars[i].name), EscapedXml(parts[part]), TickText(bars[i].parts[part])));
      begin = end;
    }
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    page.Text(kBarsRight + 16, kBarsTop + kLegendLine * (static_cast<double>(part) + 0.7),
              parts[part], TextAnchor::kStart, absl::StrFormat("f%d", SvgPage::Colour(part)));
  }
  return page.Finish();
}

}  // namespace withy
