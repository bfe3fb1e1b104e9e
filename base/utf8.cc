#include "base/utf8.h"

#include <cstdint>

namespace withy {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid character at the start of `text`, or 0.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : lead >= 0xE0 && lead <= 0xEF ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  // The range of the second byte excludes overlong forms, surrogates and code points above
  // U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string ValidUtf8(std::string_view text, size_t max_bytes) {
  std::string valid;
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    const std::string_view next = length > 0 ? text.substr(0, length) : kReplacement;
    if (next.size() > max_bytes - valid.size()) break;
    valid.append(next);
    text.remove_prefix(length > 0 ? length : 1);
  }
  return valid;
}

}  // namespace withy
