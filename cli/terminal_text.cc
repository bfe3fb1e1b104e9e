#include "cli/terminal_text.h"

#include <unicode/uchar.h>
#include <unistd.h>

#include "engine/tokenizer/unicode.h"

namespace withy::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool IsControl(char32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

// Embeddings, overrides and isolates change the display order of the following text. Some terminals
// treat the two separators as line breaks.
bool Reorders(char32_t code) {
  return (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) ||
         code == 0x2028 || code == 0x2029;
}

// Calls `use` with each character and its bytes; a byte that is not valid UTF-8 is passed as
// U+FFFD.
template <typename Use>
void ForEachCharacter(std::string_view text, Use use) {
  for (size_t at = 0; at < text.size();) {
    char32_t code = 0;
    const size_t length = engine::Utf8CharAt(text, at, &code);
    if (length == 0) {
      use(engine::kReplacementChar, kReplacement);
      ++at;
    } else {
      use(code, text.substr(at, length));
      at += length;
    }
  }
}

std::string WithoutControls(std::string_view text, bool one_line) {
  std::string out;
  ForEachCharacter(text, [&](char32_t code, std::string_view bytes) {
    const bool layout = code == '\n' || code == '\t';
    if (one_line && (layout || code == '\r')) {
      out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
    } else if ((IsControl(code) && !layout) || Reorders(code)) {
      out += '?';
    } else {
      out += bytes;
    }
  });
  return out;
}

size_t WidthOf(char32_t code) {
  const auto point = static_cast<UChar32>(code);
  const uint32_t category = U_GET_GC_MASK(point);
  constexpr char32_t kSoftHyphen = 0xAD;  // shown by terminals
  if (code == kSoftHyphen) return 1;
  if (category & (U_GC_MN_MASK | U_GC_ME_MASK | U_GC_CF_MASK)) return 0;
  if (code >= 0x1160 && code <= 0x11FF)
    return 0;  // vowels and finals that combine into a Hangul syllable
  const int width = u_getIntPropertyValue(point, UCHAR_EAST_ASIAN_WIDTH);
  return width == U_EA_WIDE || width == U_EA_FULLWIDTH ? 2 : 1;
}

}  // namespace

std::string Printable(std::string_view text) { return WithoutControls(text, false); }

std::string OneLine(std::string_view text) { return WithoutControls(text, true); }

std::string ForStandardOutput(std::string_view text) {
  return isatty(STDOUT_FILENO) != 0 ? Printable(text) : std::string(text);
}

size_t DisplayWidth(std::string_view text) {
  size_t width = 0;
  ForEachCharacter(text, [&](char32_t code, std::string_view) { width += WidthOf(code); });
  return width;
}

}  // namespace withy::cli
