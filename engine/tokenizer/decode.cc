// Decoding: the parts of Tokenizer that need no vocabulary class, and StreamDecoder.
#include <algorithm>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace withy::engine {

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  const TextPiece piece{text, options.parse_special};
  return EncodePieces(std::span(&piece, 1), options).ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool render_special) const {
  std::string text;
  bool prefixed =
      adds_space_prefix();  // the next ordinary token begins with a space that Encode() added
  for (const int32_t id : ids) {
    const bool control = IsControl(id);
    std::string_view bytes = control && !render_special ? std::string_view() : TokenBytes(id);
    if (IsSpecial(id)) {
      prefixed = adds_space_prefix();
    } else if (!bytes.empty()) {
      if (prefixed && bytes.front() == ' ') bytes.remove_prefix(1);
      prefixed = false;
    }
    text.append(bytes);
  }
  return text;
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  const std::span<const int32_t> ends = end_of_generation_ids();
  return std::binary_search(ends.begin(), ends.end(), id);
}

std::string StreamDecoder::Push(int32_t id) {
  if (tokenizer_.IsControl(id) && std::find(shown_.begin(), shown_.end(), id) == shown_.end()) {
    return "";
  }
  held_.append(tokenizer_.TokenBytes(id));
  std::string text;
  size_t at = 0;
  while (at < held_.size()) {
    char32_t code = kReplacementChar;
    size_t length = Utf8CharAt(held_, at, &code);
    if (length == 0) {
      if (IsUtf8Prefix(held_, at)) break;
      length = 1;
    }
    AppendUtf8(code, text);
    at += length;
  }
  held_.erase(0, at);
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  if (!held_.empty()) AppendUtf8(kReplacementChar, text);
  held_.clear();
  return text;
}

}  // namespace withy::engine
