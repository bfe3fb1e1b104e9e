// UTF-8 stepping and the character classes that pre-tokenizers speak of.
// Neighbours: split.cc and the tokenizers. Character data comes from ICU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/cancel.h"

namespace withy::engine {

// Classes of a character, as bits. Digits of any script are numbers; "upper" includes title case;
// "caseless" are the letters that are neither.
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

// One character of a text: bytes [begin, next character's begin).
struct Char {
  char32_t code = 0;  // U+FFFD for a byte that is no UTF-8
  uint32_t begin = 0;
  uint16_t classes = 0;
};

// Length of the valid UTF-8 character at text[at] (1 to 4), or 0 when there is none: a stray,
// overlong, surrogate or unfinished sequence. `code` gets the character.
size_t Utf8CharAt(std::string_view text, size_t at, char32_t* code);

// True when text[at..] may become one valid character by appending bytes.
bool IsUtf8Prefix(std::string_view text, size_t at);

void AppendUtf8(char32_t code, std::string& out);

uint16_t ClassesOf(char32_t code);

// The characters of `text`, a byte that is no UTF-8 as one U+FFFD; fewer once `poll` (may be null)
// stops.
std::vector<Char> DecodeChars(std::string_view text, CancelPoll* poll = nullptr);

}  // namespace withy::engine
