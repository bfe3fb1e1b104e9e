#include "engine/jinja/characters.h"

#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <algorithm>
#include <cstring>

#include "engine/tokenizer/unicode.h"

namespace withy::jinja {
namespace {

using CaseMapping = int32_t (*)(UChar*, int32_t, const UChar*, int32_t, const char*, UErrorCode*);

std::string Mapped(char32_t code, CaseMapping mapping) {
  UChar from[2];
  int32_t length = 0;
  UErrorCode error = U_ZERO_ERROR;
  const auto point = static_cast<UChar32>(code);
  u_strFromUTF32(from, 2, &length, &point, 1, &error);
  UChar to[8];
  const int32_t mapped = mapping(to, 8, from, length, "", &error);
  char utf8[32];
  int32_t bytes = 0;
  u_strToUTF8(utf8, sizeof(utf8), &bytes, to, mapped, &error);
  std::string out;
  if (U_FAILURE(error) != 0) {
    engine::AppendUtf8(code, out);
  } else {
    out.assign(utf8, static_cast<size_t>(bytes));
  }
  return out;
}

}  // namespace

size_t CharAt(std::string_view text, size_t at, char32_t* code) {
  const size_t length = engine::Utf8CharAt(text, at, code);
  if (length > 0) return length;
  *code = engine::kReplacementChar;
  return 1;
}

size_t CharBytes(std::string_view text, size_t at) {
  char32_t code = 0;
  return CharAt(text, at, &code);
}

bool IsSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t SpacesEnd(std::string_view text, size_t at) {
  while (at < text.size()) {
    char32_t code = 0;
    const size_t length = CharAt(text, at, &code);
    if (!IsSpace(code)) break;
    at += length;
  }
  return at;
}

size_t SpacesBegin(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
      --begin;
    }
    char32_t code = 0;
    if (CharAt(text, begin, &code) != end - begin || !IsSpace(code)) break;
    end = begin;
  }
  return end;
}

size_t CountChars(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += CharBytes(text, at)) ++count;
  return count;
}

size_t ByteOfChar(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += CharBytes(text, at);
    --index;
  }
  return at;
}

std::string Upper(char32_t code) {
  if (code >= 0x80) return Mapped(code, u_strToUpper);
  return std::string(1, static_cast<char>(code >= 'a' && code <= 'z' ? code - 32 : code));
}

std::string Lower(char32_t code) {
  if (code >= 0x80) return Mapped(code, u_strToLower);
  return std::string(1, static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
}

std::string Title(char32_t code) {
  if (code < 0x80) return Upper(code);
  const auto title = static_cast<char32_t>(u_totitle(static_cast<UChar32>(code)));
  const std::string upper = Upper(code);
  std::string out;
  if (title != code || CountChars(upper) == 1) {
    engine::AppendUtf8(title, out);
    return out;
  }
  // The German sharp s becomes Ss.
  for (size_t at = 0; at < upper.size();) {
    char32_t part = 0;
    const size_t length = CharAt(upper, at, &part);
    out += at == 0 ? upper.substr(0, length) : Lower(part);
    at += length;
  }
  return out;
}

bool IsCased(char32_t code) {
  return u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_CASED) != 0;
}

size_t FindBytes(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* const found =
      memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastBytes(std::string_view text, std::string_view part) {
  constexpr size_t kShort = 16;  // a search by comparing each place takes few steps a place
  if (part.size() <= kShort || part.size() > text.size()) return text.rfind(part);
  const std::string reversed(text.rbegin(), text.rend());
  const size_t found = FindBytes(reversed, std::string(part.rbegin(), part.rend()));
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

}  // namespace withy::jinja
