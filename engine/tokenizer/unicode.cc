#include "engine/tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <array>

namespace withy::engine {
namespace {

uint16_t ClassesFromIcu(char32_t code) {
  const auto point = static_cast<UChar32>(code);
  const uint32_t category = U_GET_GC_MASK(point);
  uint16_t classes = 0;
  if (category & (U_GC_LU_MASK | U_GC_LT_MASK)) classes |= kCharUpper;
  if (category & U_GC_LL_MASK) classes |= kCharLower;
  if (category & (U_GC_LM_MASK | U_GC_LO_MASK)) classes |= kCharCaseless;
  if (category & U_GC_N_MASK) classes |= kCharNumber;
  if (category & U_GC_M_MASK) classes |= kCharMark;
  if (category & U_GC_P_MASK) classes |= kCharPunct;
  if (category & U_GC_S_MASK) classes |= kCharSymbol;
  if (category & U_GC_C_MASK) classes |= kCharControl;
  if (u_isUWhiteSpace(point)) classes |= kCharSpace;
  return classes;
}

// Length of a sequence that begins with `lead`, or 0. Excludes leads that begin only overlong or
// too large sequences.
size_t SequenceLength(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Whether `second` may follow `lead`: excludes overlong forms, surrogates and code points above
// U+10FFFF.
bool IsSecondByte(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

// Number of bytes at text[at..] that match a valid sequence; `length` receives its full length.
size_t MatchingBytes(std::string_view text, size_t at, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  *length = SequenceLength(byte(0));
  if (*length == 0) return 0;
  size_t matched = 1;
  while (matched < *length && at + matched < text.size()) {
    const bool fits =
        matched == 1 ? IsSecondByte(byte(0), byte(1)) : (byte(matched) & 0xC0) == 0x80;
    if (!fits) break;
    ++matched;
  }
  return matched;
}

}  // namespace

size_t Utf8CharAt(std::string_view text, size_t at, char32_t* code) {
  size_t length = 0;
  if (MatchingBytes(text, at, &length) != length || length == 0) return 0;
  constexpr uint8_t kLeadMask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t value = static_cast<uint8_t>(text[at]) & kLeadMask[length];
  for (size_t i = 1; i < length; ++i) {
    value = (value << 6) | (static_cast<uint8_t>(text[at + i]) & 0x3F);
  }
  *code = value;
  return length;
}

bool IsUtf8Prefix(std::string_view text, size_t at) {
  size_t length = 0;
  const size_t matched = MatchingBytes(text, at, &length);
  return matched > 0 && matched < length && at + matched == text.size();
}

void AppendUtf8(char32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

uint16_t ClassesOf(char32_t code) {
  constexpr size_t kCached = 0x800;  // Latin, Greek, Cyrillic, Hebrew, Arabic
  static const std::array<uint16_t, kCached> cache = [] {
    std::array<uint16_t, kCached> classes;
    for (size_t i = 0; i < kCached; ++i) classes[i] = ClassesFromIcu(static_cast<char32_t>(i));
    return classes;
  }();
  return code < kCached ? cache[code] : ClassesFromIcu(code);
}

std::vector<Char> DecodeChars(std::string_view text, CancelPoll* poll) {
  std::vector<Char> chars;
  chars.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    char32_t code = kReplacementChar;
    const size_t length = Utf8CharAt(text, at, &code);
    chars.push_back({code, static_cast<uint32_t>(at), ClassesOf(code)});
    at += length == 0 ? 1 : length;
    if (poll != nullptr && poll->Stop()) break;
  }
  return chars;
}

}  // namespace withy::engine
