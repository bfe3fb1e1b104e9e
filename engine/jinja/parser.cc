#include "engine/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/jinja/expression_parser.h"
#include "engine/jinja/token_cursor.h"

namespace withy::jinja {
namespace {

// Text, outputs and tags. Not thread-safe.
class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Block> Run() { return ParseBlock({}); }

 private:
  using Names = std::initializer_list<std::string_view>;

  // Until a block tag whose name is one of `ends`, which is left as the present token.
  absl::StatusOr<Block> ParseBlock(Names ends) {
    const TokenCursor::Level level(tokens_);
    if (level.too_deep()) return tokens_.TooDeep();
    Block block;
    while (!tokens_.Is(Token::Type::kEnd)) {
      const int line = tokens_.now().line;
      absl::StatusOr<std::unique_ptr<Statement>> statement;
      if (tokens_.Is(Token::Type::kText)) {
        auto text = std::make_unique<TextStatement>();
        text->text = Text(tokens_.now().text);
        tokens_.Skip();
        statement = std::move(text);
      } else if (tokens_.Is(Token::Type::kOutputBegin)) {
        statement = ParseOutput();
      } else {
        tokens_.Skip();  // {%
        if (std::any_of(ends.begin(), ends.end(),
                        [&](auto name) { return tokens_.IsName(name); })) {
          return block;
        }
        statement = ParseStatement();
      }
      if (!statement.ok()) return statement.status();
      if (*statement == nullptr) continue;
      (*statement)->line = line;
      block.push_back(*std::move(statement));
    }
    if (ends.size() > 0) {
      return tokens_.Unexpected(absl::StrCat("{% ", ToAbsl(*(ends.end() - 1)), " %}"));
    }
    return block;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseOutput() {
    tokens_.Skip();
    auto output = std::make_unique<OutputStatement>();
    WITHY_ASSIGN_OR_RETURN(output->expression, ParseTuple(tokens_, /*conditional=*/true));
    if (!tokens_.Is(Token::Type::kOutputEnd)) return tokens_.Unexpected("}}");
    tokens_.Skip();
    return output;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseStatement() {
    WITHY_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName());
    if (name == "for") return ParseFor();
    if (name == "if") return ParseIf();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "call") return ParseCallBlock();
    if (name == "filter") return ParseFilterBlock();
    if (name == "with") return ParseWith();
    if (name == "generation") return ParseGeneration();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        return tokens_.Unsupported(absl::StrCat("{% ", name, " %} outside of a loop"));
      }
      WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
      if (name == "break") return std::make_unique<BreakStatement>();
      return std::make_unique<ContinueStatement>();
    }
    for (const char* known : {"include", "import", "from", "extends", "block", "autoescape", "do",
                              "trans", "print", "debug"}) {
      if (name == known) return tokens_.Unsupported(absl::StrCat("{% ", name, " %}"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("line ", tokens_.now().line, ": unknown tag '", name.substr(0, 40), "'"));
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseFor() {
    auto loop = std::make_unique<ForStatement>();
    WITHY_ASSIGN_OR_RETURN(loop->target, ParseTarget(/*namespaces=*/false));
    if (!tokens_.SkipName("in")) return tokens_.Unexpected("in");
    WITHY_ASSIGN_OR_RETURN(loop->over, ParseTuple(tokens_, /*conditional=*/false));
    if (tokens_.SkipName("if")) {
      WITHY_ASSIGN_OR_RETURN(loop->condition, ParseExpression(tokens_));
    }
    if (tokens_.IsName("recursive")) return tokens_.Unsupported("a recursive loop");
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    ++loops_;
    auto body = ParseBlock({"else", "endfor"});
    --loops_;
    if (!body.ok()) return body.status();
    loop->body = *std::move(body);
    if (tokens_.SkipName("else")) {
      WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
      WITHY_ASSIGN_OR_RETURN(loop->otherwise, ParseBlock({"endfor"}));
    }
    tokens_.Skip();  // endfor
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    return loop;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseIf() {
    auto statement = std::make_unique<IfStatement>();
    while (true) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseTuple(tokens_, /*conditional=*/false));
      WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
      WITHY_ASSIGN_OR_RETURN(Block body, ParseBlock({"elif", "else", "endif"}));
      statement->branches.emplace_back(std::move(condition), std::move(body));
      if (!tokens_.SkipName("elif")) break;
    }
    if (tokens_.SkipName("else")) {
      WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
      WITHY_ASSIGN_OR_RETURN(Block body, ParseBlock({"endif"}));
      statement->branches.emplace_back(nullptr, std::move(body));
    }
    tokens_.Skip();  // endif
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    return statement;
  }

  // The body of a tag that captures its output. {% break %} cannot leave it.
  absl::StatusOr<Block> ParseCaptured(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    auto body = ParseBlock({end});
    loops_ = loops;
    if (!body.ok()) return body.status();
    tokens_.Skip();  // the end tag's name
    if (end == "endmacro" && tokens_.Is(Token::Type::kName)) tokens_.Skip();
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    return body;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseSet() {
    WITHY_ASSIGN_OR_RETURN(Target target, ParseTarget(/*namespaces=*/true));
    if (tokens_.SkipOperator("=")) {
      auto set = std::make_unique<SetStatement>();
      set->target = std::move(target);
      WITHY_ASSIGN_OR_RETURN(set->value, ParseTuple(tokens_, /*conditional=*/true));
      WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
      return set;
    }
    auto set = std::make_unique<SetBlockStatement>();
    set->target = std::move(target);
    if (tokens_.IsOperator("|")) {
      WITHY_ASSIGN_OR_RETURN(set->filter, ParseBlockFilters(tokens_));
    }
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(set->body, ParseCaptured("endset"));
    return set;
  }

  absl::Status ParseParameters(MacroStatement* macro) {
    WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.SkipOperator(")")) {
      if (!macro->parameters.empty()) WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      WITHY_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
      ExpressionPtr value;
      if (tokens_.SkipOperator("=")) {
        WITHY_ASSIGN_OR_RETURN(value, ParseExpression(tokens_));
      }
      macro->parameters.emplace_back(std::move(name), std::move(value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseMacro() {
    auto macro = std::make_unique<MacroStatement>();
    WITHY_ASSIGN_OR_RETURN(macro->name, tokens_.ExpectName());
    WITHY_RETURN_IF_ERROR(ParseParameters(macro.get()));
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(macro->body, ParseCaptured("endmacro"));
    return macro;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseCallBlock() {
    auto block = std::make_unique<CallBlockStatement>();
    block->caller.name = "caller";
    if (tokens_.IsOperator("(")) WITHY_RETURN_IF_ERROR(ParseParameters(&block->caller));
    WITHY_ASSIGN_OR_RETURN(block->call, ParseExpression(tokens_));
    if (block->call->type != Expression::Type::kCall) return tokens_.Unexpected("a call");
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(block->caller.body, ParseCaptured("endcall"));
    return block;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseFilterBlock() {
    auto block = std::make_unique<FilterBlockStatement>();
    WITHY_ASSIGN_OR_RETURN(block->filter, ParseBlockFilters(tokens_));
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(block->body, ParseCaptured("endfilter"));
    return block;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseWith() {
    auto with = std::make_unique<WithStatement>();
    while (!tokens_.Is(Token::Type::kBlockEnd)) {
      if (!with->bindings.empty()) WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      WITHY_ASSIGN_OR_RETURN(Target target, ParseOneTarget(false));
      WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression(tokens_));
      with->bindings.emplace_back(std::move(target), std::move(value));
    }
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(with->body, ParseBlock({"endwith"}));
    tokens_.Skip();  // endwith
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    return with;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseGeneration() {
    WITHY_RETURN_IF_ERROR(tokens_.ExpectBlockEnd());
    auto scope = std::make_unique<WithStatement>();
    WITHY_ASSIGN_OR_RETURN(scope->body, ParseCaptured("endgeneration"));
    return scope;
  }

  absl::StatusOr<Target> ParseOneTarget(bool namespaces) {
    const TokenCursor::Level level(tokens_);
    if (level.too_deep()) return tokens_.TooDeep();
    Target target;
    if (tokens_.SkipOperator("(")) {
      WITHY_ASSIGN_OR_RETURN(target, ParseTarget(namespaces));
      WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
      return target;
    }
    WITHY_ASSIGN_OR_RETURN(target.name, tokens_.ExpectName());
    static const std::set<std::string_view> kConstants = {"true", "false", "none",
                                                          "True", "False", "None"};
    if (kConstants.contains(target.name)) return tokens_.Unexpected("a name to assign to");
    if (namespaces && tokens_.SkipOperator(".")) {
      WITHY_ASSIGN_OR_RETURN(target.attribute, tokens_.ExpectName());
    }
    return target;
  }

  absl::StatusOr<Target> ParseTarget(bool namespaces) {
    WITHY_ASSIGN_OR_RETURN(Target first, ParseOneTarget(namespaces));
    if (!tokens_.IsOperator(",")) return first;
    Target all;
    all.several.push_back(std::move(first));
    while (tokens_.SkipOperator(",")) {
      if (tokens_.IsName("in") || tokens_.IsOperator("=") || tokens_.IsOperator(")")) break;
      WITHY_ASSIGN_OR_RETURN(Target target, ParseOneTarget(namespaces));
      all.several.push_back(std::move(target));
    }
    return all;
  }

  TokenCursor tokens_;
  int loops_ = 0;  // that {% break %} may leave
};

}  // namespace

absl::StatusOr<Block> Parse(std::string_view source) {
  WITHY_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens)).Run();
}

}  // namespace withy::jinja
