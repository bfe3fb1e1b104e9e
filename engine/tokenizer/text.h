// Small types shared by chat templates, tokenizers and prompt pruning: byte ranges and prompt
// pieces.
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

// A piece of a prompt. With `parse_special`, texts of control tokens (such as <|im_end|>) become
// those tokens; otherwise they stay ordinary text, so that a user cannot forge a turn.
struct TextPiece {
  std::string_view text;
  bool parse_special = false;
};

}  // namespace withy::engine
