// What the charts of reports share: a page whose colours follow the reader's light or dark scheme,
// escaped text, and round tick values. Neighbours: line_chart.h and bar_chart.h draw on it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace withy {

// Ascending multiples of 1, 2 or 5 times a power of ten within [low, high], at most `most` of them.
// Empty unless low < high and both are finite.
std::vector<double> RoundTicks(double low, double high, int most);

// "0.25", "1500", "2e+06": three significant digits, all of an integer below 100,000.
std::string TickText(double value);

// Text that may stand in an element or an attribute.
std::string EscapedXml(std::string_view text);

enum class TextAnchor { kStart, kMiddle, kEnd };

class SvgPage {
 public:
  // Colours of series; further ones begin again.
  static constexpr size_t kColours = 14;

  SvgPage(double width, double height);

  // Appends elements. They may use the classes "grid" (lines beside the data), "lN" (stroke of
  // series N) and "fN" (fill of series N), with N from Colour().
  void Add(std::string_view elements) { body_ += elements; }
  // `x`, `y`: of the baseline's anchor, in pixels. `style`: a class, or empty.
  void Text(double x, double y, std::string_view text, TextAnchor anchor = TextAnchor::kStart,
            std::string_view style = "");
  static size_t Colour(size_t series) { return series % kColours; }

  // The whole document.
  std::string Finish() const;

 private:
  std::string head_;
  std::string body_;
};

}  // namespace withy
