#include "base/charts/svg_page.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace withy {
namespace {

constexpr std::array<const char*, SvgPage::kColours> kOnLight = {
    "#1b6ca8", "#c0392b", "#1e8449", "#8e44ad", "#b9770e", "#117a65", "#5d6d7e",
    "#a93279", "#6e5b2f", "#273746", "#2e86ab", "#7d3c98", "#cb6d51", "#829300"};
constexpr std::array<const char*, SvgPage::kColours> kOnDark = {
    "#5dade2", "#ec7063", "#58d68d", "#bb8fce", "#f5b041", "#48c9b0", "#aeb6bf",
    "#f28cc9", "#c9b17a", "#d5d8dc", "#7fd1f0", "#9d8cff", "#ffab91", "#d4e157"};

const char* AnchorName(TextAnchor anchor) {
  switch (anchor) {
    case TextAnchor::kMiddle:
      return "middle";
    case TextAnchor::kEnd:
      return "end";
    case TextAnchor::kStart:
      break;
  }
  return "start";
}

std::string Scheme(const std::array<const char*, SvgPage::kColours>& colours, const char* page,
                   const char* ink, const char* grid) {
  std::string css = absl::StrFormat(
      ".page{fill:%s}text{fill:%s}.title{font-size:13px}.grid{stroke:%s;fill:none}"
      ".mark{stroke:%s}",
      page, ink, grid, page);
  for (size_t i = 0; i < colours.size(); ++i) {
    absl::StrAppendFormat(&css, ".l%d{stroke:%s;fill:none}.f%d{fill:%s}", i, colours[i], i,
                          colours[i]);
  }
  return css;
}

}  // namespace

std::vector<double> RoundTicks(double low, double high, int most) {
  std::vector<double> ticks;
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high) || most < 1) return ticks;
  const double power = std::pow(10.0, std::floor(std::log10((high - low) / most)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    step = factor * power;
    if (std::floor(high / step) - std::ceil(low / step) + 1 <= most) break;
  }
  for (double i = std::ceil(low / step); i <= std::floor(high / step); ++i) {
    ticks.push_back(i * step + 0.0);  // no minus zero
  }
  return ticks;
}

std::string TickText(double value) {
  if (value == std::round(value) && std::abs(value) < 1e5) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.3g", value);
}

std::string EscapedXml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Other control characters have no place in XML.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

SvgPage::SvgPage(double width, double height)
    : head_(absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
                            "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
                            "font-family=\"sans-serif\" font-size=\"11\">\n",
                            width, height, width, height)) {
  absl::StrAppend(&head_, "<style>", Scheme(kOnLight, "#ffffff", "#222222", "#dddddd"),
                  "@media(prefers-color-scheme:dark){",
                  Scheme(kOnDark, "#16191d", "#e4e6e8", "#3a3f45"), "}</style>\n",
                  "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n");
}

void SvgPage::Text(double x, double y, std::string_view text, TextAnchor anchor,
                   std::string_view style) {
  absl::StrAppendFormat(&body_, "<text x=\"%.1f\" y=\"%.1f\"", x, y);
  if (anchor != TextAnchor::kStart) {
    absl::StrAppend(&body_, " text-anchor=\"", AnchorName(anchor), "\"");
  }
  if (!style.empty()) absl::StrAppend(&body_, " class=\"", ToAbsl(style), "\"");
  absl::StrAppend(&body_, ">", EscapedXml(text), "</text>\n");
}

std::string SvgPage::Finish() const { return absl::StrCat(head_, body_, "</svg>\n"); }

}  // namespace withy
