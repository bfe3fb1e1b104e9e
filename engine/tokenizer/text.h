// Small types that chat templates, tokenizers and prompt pruning share: byte ranges and pieces of a
// prompt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace withy::engine {

// Half-open range of bytes.
struct ByteSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const ByteSpan&, const ByteSpan&) = default;
};

// A piece of a prompt. In a piece with `parse_special` the texts of control tokens (such as
// <|im_end|>) become those tokens; in others they are ordinary text, so that a user cannot forge a
// turn.
struct TextPiece {
  std::string_view text;
  bool parse_special = false;
};

}  // namespace withy::engine
