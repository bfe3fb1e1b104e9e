// UTF-8 decoding and the character classes that pre-tokenizers use. Neighbours: split.cc and the
// tokenizers. Character data comes from ICU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/cancel.h"

namespace withy::engine {

// Character classes as bits. Digits of any script are numbers; "upper" includes title case;
// "caseless" are all other letters.
enum CharClass : uint16_t {
  kCharUpper = 1,      // Lu, Lt
  kCharLower = 2,      // Ll
  kCharCaseless = 4,   // Lm, Lo
  kCharNumber = 8,     // N
  kCharMark = 16,      // M
  kCharPunct = 32,     // P
  kCharSymbol = 64,    // S
  kCharSpace = 128,    // White_Space
  kCharControl = 256,  // Cc, Cf, Co, Cn and the like
  kCharLetter = kCharUpper | kCharLower | kCharCaseless,
};

inline constexpr char32_t kReplacementChar = 0xFFFD;

// One character of a text: bytes [begin, begin of the next character).
struct Char {
  char32_t code = 0;  // U+FFFD for a byte that is not valid UTF-8
  uint32_t begin = 0;
  uint16_t classes = 0;
};

// Length of the valid UTF-8 character at text[at] (1 to 4), or 0 for a stray, overlong, surrogate
// or incomplete sequence. Stores the character in `code`.
size_t Utf8CharAt(std::string_view text, size_t at, char32_t* code);

// True if appending bytes could make text[at..] one valid character.
bool IsUtf8Prefix(std::string_view text, size_t at);

void AppendUtf8(char32_t code, std::string& out);

uint16_t ClassesOf(char32_t code);

// The characters of `text`; a byte that is not valid UTF-8 becomes U+FFFD. Incomplete once `poll`
// (may be null) stops.
std::vector<Char> DecodeChars(std::string_view text, CancelPoll* poll = nullptr);

}  // namespace withy::engine
