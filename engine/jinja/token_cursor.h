// Walks over a template's tokens: what the parsers of statements and of expressions ask of them.
// Neighbours: lexer.h, parser.cc, expression_parser.cc.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/jinja/lexer.h"

namespace withy::jinja {

// Not thread-safe. Errors name the line of the present token.
class TokenCursor {
 public:
  // `tokens` end with a token kEnd, which is never left.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  TokenCursor(const TokenCursor&) = delete;
  TokenCursor& operator=(const TokenCursor&) = delete;

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Skip() { at_ = std::min(at_ + 1, tokens_.size() - 1); }

  bool Is(Token::Type type) const { return now().type == type; }
  bool IsName(std::string_view name) const { return IsToken(now(), Token::Type::kName, name); }
  bool IsOperator(std::string_view op) const { return IsToken(now(), Token::Type::kOperator, op); }
  bool NextIsName(std::string_view name) const { return IsToken(next(), Token::Type::kName, name); }
  bool NextIsOperator(std::string_view op) const {
    return IsToken(next(), Token::Type::kOperator, op);
  }
  // Whether the present token is this one, which is skipped then.
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);

  // Skip what must be there. Errors: INVALID_ARGUMENT, as Unexpected.
  absl::Status ExpectOperator(std::string_view op);
  absl::Status ExpectBlockEnd();
  absl::StatusOr<std::string> ExpectName();

  absl::Status Unexpected(std::string_view wanted) const;  // INVALID_ARGUMENT
  absl::Status Unsupported(std::string_view what) const;   // UNIMPLEMENTED
  // UNIMPLEMENTED, or RESOURCE_EXHAUSTED where the stack does not allow another level.
  absl::Status TooDeep() const;

  // Counts how deep the parsers are while it lives.
  class Level {
   public:
    explicit Level(TokenCursor& tokens) : levels_(tokens.levels_) { ++levels_; }
    ~Level() { --levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    bool too_deep() const;

   private:
    int& levels_;
  };

 private:
  static bool IsToken(const Token& token, Token::Type type, std::string_view text) {
    return token.type == type && token.text == text;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int levels_ = 0;
};

}  // namespace withy::jinja
