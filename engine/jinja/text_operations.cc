#include "engine/jinja/text_operations.h"

#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/characters.h"

namespace withy::jinja {
namespace {

// At most `limit` replacements; negative: all.
Text Replaced(const Text& text, const Text& from, const Text& to, int64_t limit) {
  Text out;
  const std::string& bytes = text.bytes();
  size_t at = 0;
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    if (from.empty()) {  // `to` goes in front of every character and to the end
      out.Append(to);
      if (at == bytes.size()) return out;
      const size_t length = CharBytes(bytes, at);
      out.Append(text, at, at + length);
      at += length;
      continue;
    }
    const size_t found = FindBytes(bytes, from.bytes(), at);
    if (found == std::string::npos) break;
    out.Append(text, at, found);
    out.Append(to);
    at = found + from.size();
  }
  out.Append(text, at, bytes.size());
  return out;
}

}  // namespace

Text Stripped(const Text& text, const Text* characters, Side side) {
  const std::string& bytes = text.bytes();
  std::set<std::string_view> wanted;
  if (characters != nullptr) {
    const std::string_view all = characters->bytes();
    for (size_t at = 0; at < all.size(); at += CharBytes(all, at)) {
      wanted.insert(all.substr(at, CharBytes(all, at)));
    }
  }
  const auto strips = [&](size_t begin, size_t end) {
    const std::string_view one = std::string_view(bytes).substr(begin, end - begin);
    if (characters != nullptr) return wanted.contains(one);
    char32_t code = 0;
    return CharAt(one, 0, &code) == one.size() && IsSpace(code);
  };
  size_t begin = 0;
  if (side != Side::kRight) {
    while (begin < bytes.size()) {
      const size_t next = begin + CharBytes(bytes, begin);
      if (!strips(begin, next)) break;
      begin = next;
    }
  }
  size_t end = bytes.size();
  if (side != Side::kLeft) {
    while (end > begin) {
      size_t last = end - 1;
      while (last > begin && end - last < 4 && (static_cast<uint8_t>(bytes[last]) & 0xC0) == 0x80) {
        --last;
      }
      if (!strips(last, end)) break;
      end = last;
    }
  }
  return text.Sub(begin, end);
}

Text MapCharacters(const Text& text, std::string (*mapping)(char32_t)) {
  Text out;
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = CharAt(bytes, at, &code);
    out.AppendInPlaceOf(text, at, mapping(code));
    at += length;
  }
  return out;
}

Text TitleCased(const Text& text, bool capitalize_only) {
  Text out;
  const std::string& bytes = text.bytes();
  bool inside = false;  // of a word
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = CharAt(bytes, at, &code);
    out.AppendInPlaceOf(text, at, inside ? Lower(code) : Title(code));
    inside = capitalize_only || IsCased(code);
    at += length;
  }
  return out;
}

absl::StatusOr<Value> ReplaceWithin(Interpreter& in, const Text& text, const Text& from,
                                    const Text& to, int64_t limit) {
  const std::string& bytes = text.bytes();
  WITHY_RETURN_IF_ERROR(in.Spend(bytes.size()));
  size_t places = bytes.size() + 1;
  if (!from.empty()) {
    places = 0;
    for (size_t at = FindBytes(bytes, from.bytes()); at != std::string::npos;
         at = FindBytes(bytes, from.bytes(), at + from.size())) {
      ++places;
    }
  }
  if (to.size() > in.options().max_bytes / (places + 1)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("replace() gives more than ", in.options().max_bytes, " bytes"));
  }
  WITHY_RETURN_IF_ERROR(in.Spend(places));
  return Value::String(Replaced(text, from, to, limit));
}

}  // namespace withy::jinja
