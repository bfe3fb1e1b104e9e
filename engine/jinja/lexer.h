// Cuts a template's text into tokens, with Jinja's rules for white space around tags: `-` and `+`
// signs, and, as transformers sets them, trim_blocks (the newline behind a block tag goes) and
// lstrip_blocks (spaces in front of a block tag that begins a line go). Neighbour:
// token_cursor.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::jinja {

struct Token {
  enum class Type {
    kText,         // between tags
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // text: without quotes and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Type type = Type::kEnd;
  std::string text;
  int line = 1;
};

// `source` is valid UTF-8. The result ends with a token kEnd. Errors: INVALID_ARGUMENT naming the
// line.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace withy::jinja
