#include "engine/jinja/token_cursor.h"

#include "absl/strings/str_cat.h"
#include "base/stack_left.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/jinja/ast.h"

namespace withy::jinja {
namespace {

std::string Shown(const Token& token) {
  switch (token.type) {
    case Token::Type::kText:
      return "text";
    case Token::Type::kOutputBegin:
      return "{{";
    case Token::Type::kOutputEnd:
      return "}}";
    case Token::Type::kBlockBegin:
      return "{%";
    case Token::Type::kBlockEnd:
      return "%}";
    case Token::Type::kEnd:
      return "the end of the template";
    default:
      return absl::StrCat("'", token.text.substr(0, 40), "'");
  }
}

}  // namespace

bool TokenCursor::SkipName(std::string_view name) {
  const bool is = IsName(name);
  if (is) Skip();
  return is;
}

bool TokenCursor::SkipOperator(std::string_view op) {
  const bool is = IsOperator(op);
  if (is) Skip();
  return is;
}

absl::Status TokenCursor::ExpectOperator(std::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : Unexpected(op);
}

absl::Status TokenCursor::ExpectBlockEnd() {
  if (!Is(Token::Type::kBlockEnd)) return Unexpected("%}");
  Skip();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenCursor::ExpectName() {
  if (!Is(Token::Type::kName)) return Unexpected("a name");
  std::string name = now().text;
  Skip();
  return name;
}

absl::Status TokenCursor::Unexpected(std::string_view wanted) const {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", now().line, ": expected ", ToAbsl(wanted), ", found ", Shown(now())));
}

absl::Status TokenCursor::Unsupported(std::string_view what) const {
  return absl::UnimplementedError(
      absl::StrCat("line ", now().line, ": ", ToAbsl(what), " is not supported"));
}

absl::Status TokenCursor::TooDeep() const {
  if (!StackAllows()) {
    return Annotate(StackExhausted("the template"), absl::StrCat("line ", now().line));
  }
  return absl::UnimplementedError(
      absl::StrCat("line ", now().line, ": nested more than ", kMaxNesting, " levels deep"));
}

bool TokenCursor::Level::too_deep() const { return levels_ > kMaxNesting || !StackAllows(); }

}  // namespace withy::jinja
