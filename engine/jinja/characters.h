// Characters of UTF-8 texts as Python sees them: counted by code point, its white space, its upper
// and lower case. A byte that is not valid UTF-8 counts as one character. Neighbour: text.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace withy::jinja {

// Bytes of the character at text[at], 1 to 4. `at` is inside the text.
size_t CharBytes(std::string_view text, size_t at);
// The same, with the character (U+FFFD if invalid).
size_t CharAt(std::string_view text, size_t at, char32_t* code);

// Whether str.strip() removes it.
bool IsSpace(char32_t code);
// The end of the white space that begins at `at`; `at` if there is none or it is outside the text.
size_t SpacesEnd(std::string_view text, size_t at);
// The begin of the white space at the end of `text`; its size if there is none.
size_t SpacesBegin(std::string_view text);

size_t CountChars(std::string_view text);
// The byte where character `index` begins; the size of `text` if it has fewer.
size_t ByteOfChar(std::string_view text, size_t index);

// As std::string's find(), in time that grows with the text and not with the product of both.
size_t FindBytes(std::string_view text, std::string_view part, size_t from = 0);
size_t FindLastBytes(std::string_view text, std::string_view part);

// A character in another case, which may be several.
std::string Upper(char32_t code);
std::string Lower(char32_t code);
std::string Title(char32_t code);
bool IsCased(char32_t code);

}  // namespace withy::jinja
