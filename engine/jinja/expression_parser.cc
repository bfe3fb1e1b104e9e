#include "engine/jinja/expression_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/parser.h"

namespace withy::jinja {
namespace {

std::optional<Operator> ComparisonNamed(std::string_view text) {
  if (text == "==") return Operator::kEqual;
  if (text == "!=") return Operator::kNotEqual;
  if (text == "<") return Operator::kLess;
  if (text == "<=") return Operator::kLessEqual;
  if (text == ">") return Operator::kGreater;
  if (text == ">=") return Operator::kGreaterEqual;
  return std::nullopt;
}

// One node or production each. Not thread-safe.
class ExpressionParser {
  using Type = Expression::Type;

 public:
  explicit ExpressionParser(TokenCursor& tokens) : tokens_(tokens) {}

  // One expression, or a tuple of several without brackets.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool conditional, bool bracketed = false) {
    ExpressionPtr tuple = Make(Type::kTuple);
    bool several = false;
    while (true) {
      if (!tuple->children.empty()) WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      const bool end = tokens_.Is(Token::Type::kOutputEnd) || tokens_.Is(Token::Type::kBlockEnd) ||
                       tokens_.IsOperator(")");
      if (end) break;
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr item, conditional ? ParseExpression() : ParseOr());
      WITHY_RETURN_IF_ERROR(Adopt(tuple.get(), std::move(item)));
      if (!tokens_.IsOperator(",")) break;
      several = true;
    }
    if (several) return tuple;
    if (tuple->children.size() == 1) return std::move(tuple->children[0]);
    if (!bracketed) return tokens_.Unexpected("an expression");
    return tuple;
  }

  absl::StatusOr<ExpressionPtr> ParseExpression() {
    const TokenCursor::Level level(tokens_);
    if (level.too_deep()) return tokens_.TooDeep();
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
    while (tokens_.SkipName("if")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
      ExpressionPtr otherwise;
      if (tokens_.SkipName("else")) {
        WITHY_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr node,
                             Pair(Type::kConditional, std::move(value), std::move(condition)));
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(otherwise)));
      value = std::move(node);
    }
    return value;
  }

  // | filter, `is` test and calls behind `node`. Null: behind a block tag, where a filter's name
  // comes first or behind |.
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr node) {
    bool block = node == nullptr;
    while (true) {
      if (tokens_.IsOperator("|") || block) {
        tokens_.SkipOperator("|");
        block = false;
        WITHY_ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
      } else if (tokens_.IsName("is") && node != nullptr) {
        WITHY_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
      } else if (tokens_.IsOperator("(")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
      } else {
        return node;
      }
    }
  }

 private:
  ExpressionPtr Make(Type type) const {
    auto node = std::make_unique<Expression>();
    node->type = type;
    node->line = tokens_.now().line;
    return node;
  }

  // Adds a child to `node`. The parser's own depth is bounded, but a + b + c + … nests without it.
  absl::Status Adopt(Expression* node, ExpressionPtr child) const {
    if (child != nullptr) node->nesting = std::max(node->nesting, child->nesting + 1);
    node->children.push_back(std::move(child));
    return node->nesting > kMaxNesting ? tokens_.TooDeep() : absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> Pair(Type type, ExpressionPtr left, ExpressionPtr right,
                                     std::vector<Operator> operators = {}) const {
    ExpressionPtr node = Make(type);
    node->operators = std::move(operators);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(left)));
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(right)));
    return node;
  }

  absl::StatusOr<ExpressionPtr> Prefixed(Type type, absl::StatusOr<ExpressionPtr> operand) {
    if (!operand.ok()) return operand.status();
    ExpressionPtr node = Make(type);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), *std::move(operand)));
    return node;
  }

  ExpressionPtr Constant(Value value) const {
    ExpressionPtr node = Make(Type::kConstant);
    node->constant = std::move(value);
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseOr() {
    const TokenCursor::Level level(tokens_);
    if (level.too_deep()) return tokens_.TooDeep();
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
    while (tokens_.SkipName("or")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
      WITHY_ASSIGN_OR_RETURN(left, Pair(Type::kOr, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseAnd() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
    while (tokens_.SkipName("and")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
      WITHY_ASSIGN_OR_RETURN(left, Pair(Type::kAnd, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseNot() {
    const TokenCursor::Level level(tokens_);
    if (level.too_deep()) return tokens_.TooDeep();
    if (tokens_.SkipName("not")) return Prefixed(Type::kNot, ParseNot());
    return ParseComparison();
  }

  absl::StatusOr<ExpressionPtr> ParseComparison() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
    ExpressionPtr node;
    while (true) {
      std::optional<Operator> op;
      if (tokens_.Is(Token::Type::kOperator)) op = ComparisonNamed(tokens_.now().text);
      if (tokens_.IsName("in")) op = Operator::kIn;
      if (tokens_.IsName("not") && tokens_.NextIsName("in")) {
        tokens_.Skip();
        op = Operator::kNotIn;
      }
      if (!op) break;
      tokens_.Skip();
      if (node == nullptr) {
        node = Make(Type::kCompare);
        WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(first)));
      }
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseSum());
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(operand)));
      node->operators.push_back(*op);
    }
    if (node == nullptr) return first;
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseSum() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcat());
    while (tokens_.IsOperator("+") || tokens_.IsOperator("-")) {
      const Operator op = tokens_.now().text == "+" ? Operator::kAdd : Operator::kSubtract;
      tokens_.Skip();
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcat());
      WITHY_ASSIGN_OR_RETURN(left,
                             Pair(Type::kArithmetic, std::move(left), std::move(right), {op}));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseConcat() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
    if (!tokens_.IsOperator("~")) return first;
    ExpressionPtr node = Make(Type::kConcat);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(first)));
    while (tokens_.SkipOperator("~")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseProduct());
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(operand)));
    }
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseProduct() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
    while (true) {
      const Operator op = tokens_.IsOperator("*")    ? Operator::kMultiply
                          : tokens_.IsOperator("/")  ? Operator::kDivide
                          : tokens_.IsOperator("//") ? Operator::kFloorDivide
                          : tokens_.IsOperator("%")  ? Operator::kModulo
                                                     : Operator::kAdd;
      if (op == Operator::kAdd) return left;
      tokens_.Skip();
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
      WITHY_ASSIGN_OR_RETURN(left,
                             Pair(Type::kArithmetic, std::move(left), std::move(right), {op}));
    }
  }

  absl::StatusOr<ExpressionPtr> ParsePower() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(true));
    while (tokens_.SkipOperator("**")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary(true));
      WITHY_ASSIGN_OR_RETURN(
          left, Pair(Type::kArithmetic, std::move(left), std::move(right), {Operator::kPower}));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseUnary(bool filters) {
    const TokenCursor::Level level(tokens_);
    if (level.too_deep()) return tokens_.TooDeep();
    ExpressionPtr node;
    if (tokens_.SkipOperator("-")) {
      WITHY_ASSIGN_OR_RETURN(node, Prefixed(Type::kNegate, ParseUnary(false)));
    } else if (tokens_.SkipOperator("+")) {
      WITHY_ASSIGN_OR_RETURN(node, Prefixed(Type::kPlus, ParseUnary(false)));
    } else {
      WITHY_ASSIGN_OR_RETURN(node, ParsePrimary());
    }
    WITHY_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
    if (!filters) return node;
    return ParseFilters(std::move(node));
  }

  absl::StatusOr<ExpressionPtr> ParsePrimary() {
    const Token token = tokens_.now();
    switch (token.type) {
      case Token::Type::kName: {
        tokens_.Skip();
        const std::string& name = token.text;
        if (name == "true" || name == "True") return Constant(Value::Bool(true));
        if (name == "false" || name == "False") return Constant(Value::Bool(false));
        if (name == "none" || name == "None") return Constant(Value::None());
        ExpressionPtr node = Make(Type::kName);
        node->name = name;
        return node;
      }
      case Token::Type::kString: {
        std::string text;
        for (; tokens_.Is(Token::Type::kString); tokens_.Skip()) text += tokens_.now().text;
        return Constant(Value::String(text));
      }
      case Token::Type::kInteger: {
        int64_t number = 0;
        if (!absl::SimpleAtoi(token.text, &number)) {
          return tokens_.Unsupported("an integer of 64 bits or more");
        }
        tokens_.Skip();
        return Constant(Value::Int(number));
      }
      case Token::Type::kFloat: {
        double number = 0;
        if (!absl::SimpleAtod(token.text, &number)) return tokens_.Unexpected("a number");
        tokens_.Skip();
        return Constant(Value::Float(number));
      }
      default:
        break;
    }
    if (tokens_.SkipOperator("(")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr node, ParseTuple(true, /*bracketed=*/true));
      WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
      return node;
    }
    if (tokens_.SkipOperator("[")) return ParseList();
    if (tokens_.SkipOperator("{")) return ParseDict();
    return tokens_.Unexpected("an expression");
  }

  absl::StatusOr<ExpressionPtr> ParseList() {
    ExpressionPtr list = Make(Type::kList);
    while (!tokens_.IsOperator("]")) {
      if (!list->children.empty()) WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.IsOperator("]")) break;
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
      WITHY_RETURN_IF_ERROR(Adopt(list.get(), std::move(item)));
    }
    tokens_.Skip();
    return list;
  }

  absl::StatusOr<ExpressionPtr> ParseDict() {
    ExpressionPtr dict = Make(Type::kDict);
    while (!tokens_.IsOperator("}")) {
      if (!dict->children.empty()) WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.IsOperator("}")) break;
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
      WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      WITHY_RETURN_IF_ERROR(Adopt(dict.get(), std::move(key)));
      WITHY_RETURN_IF_ERROR(Adopt(dict.get(), std::move(value)));
    }
    tokens_.Skip();
    return dict;
  }

  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr node) {
    while (true) {
      if (tokens_.IsOperator(".")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseAttribute(std::move(node)));
      } else if (tokens_.IsOperator("[")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseItem(std::move(node)));
      } else if (tokens_.IsOperator("(")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
      } else {
        return node;
      }
    }
  }

  absl::StatusOr<ExpressionPtr> ParseAttribute(ExpressionPtr object) {
    tokens_.Skip();  // .
    int64_t index = 0;
    if (tokens_.Is(Token::Type::kInteger) && absl::SimpleAtoi(tokens_.now().text, &index)) {
      tokens_.Skip();
      return Pair(Type::kItem, std::move(object), Constant(Value::Int(index)));
    }
    ExpressionPtr node = Make(Type::kAttribute);
    WITHY_ASSIGN_OR_RETURN(node->name, tokens_.ExpectName());
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(object)));
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseItem(ExpressionPtr object) {
    tokens_.Skip();  // [
    ExpressionPtr start;
    if (!tokens_.IsOperator(":")) {
      WITHY_ASSIGN_OR_RETURN(start, ParseExpression());
      if (tokens_.SkipOperator("]")) return Pair(Type::kItem, std::move(object), std::move(start));
    }
    ExpressionPtr slice = Make(Type::kSlice);
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(object)));
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(start)));
    WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    ExpressionPtr stop;
    if (!tokens_.IsOperator(":") && !tokens_.IsOperator("]")) {
      WITHY_ASSIGN_OR_RETURN(stop, ParseExpression());
    }
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(stop)));
    ExpressionPtr step;
    if (tokens_.SkipOperator(":") && !tokens_.IsOperator("]")) {
      WITHY_ASSIGN_OR_RETURN(step, ParseExpression());
    }
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(step)));
    WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
    return slice;
  }

  // Arguments in brackets are added to `node`.
  absl::Status ParseArguments(Expression* node) {
    tokens_.Skip();  // (
    bool first = true;
    while (!tokens_.SkipOperator(")")) {
      if (!first) {
        WITHY_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
        if (tokens_.SkipOperator(")")) break;
      }
      first = false;
      if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
        return tokens_.Unsupported("a call with *arguments");
      }
      if (tokens_.Is(Token::Type::kName) && tokens_.NextIsOperator("=")) {
        WITHY_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
        tokens_.Skip();  // =
        WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
        node->nesting = std::max(node->nesting, value->nesting + 1);
        node->keywords.emplace_back(std::move(name), std::move(value));
      } else {
        if (!node->keywords.empty()) return tokens_.Unexpected("a named argument");
        WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
        WITHY_RETURN_IF_ERROR(Adopt(node, std::move(value)));
      }
    }
    return node->nesting > kMaxNesting ? tokens_.TooDeep() : absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> ParseCall(ExpressionPtr callee) {
    ExpressionPtr node = Make(Type::kCall);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(callee)));
    WITHY_RETURN_IF_ERROR(ParseArguments(node.get()));
    return node;
  }

  absl::StatusOr<std::string> ParseDottedName() {
    WITHY_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
    while (tokens_.SkipOperator(".")) {
      WITHY_ASSIGN_OR_RETURN(const std::string part, tokens_.ExpectName());
      absl::StrAppend(&name, ".", part);
    }
    return name;
  }

  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr input) {
    ExpressionPtr node = Make(Type::kFilter);
    WITHY_ASSIGN_OR_RETURN(node->name, ParseDottedName());
    node->filter = FindFilter(node->name);
    if (node->filter == nullptr) {
      return tokens_.Unsupported(absl::StrCat("the filter '", node->name, "'"));
    }
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(input)));
    if (tokens_.IsOperator("(")) WITHY_RETURN_IF_ERROR(ParseArguments(node.get()));
    return node;
  }

  // Whether the present token begins the argument of a test without brackets.
  bool BeginsTestArgument() const {
    switch (tokens_.now().type) {
      case Token::Type::kName:
        return !tokens_.IsName("else") && !tokens_.IsName("or") && !tokens_.IsName("and");
      case Token::Type::kString:
      case Token::Type::kInteger:
      case Token::Type::kFloat:
        return true;
      default:
        return tokens_.IsOperator("[") || tokens_.IsOperator("{");
    }
  }

  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr input) {
    tokens_.Skip();  // is
    const bool negated = tokens_.SkipName("not");
    ExpressionPtr node = Make(Type::kTest);
    WITHY_ASSIGN_OR_RETURN(node->name, ParseDottedName());
    node->test = FindTest(node->name);
    if (node->test == nullptr) {
      return tokens_.Unsupported(absl::StrCat("the test '", node->name, "'"));
    }
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(input)));
    if (tokens_.IsOperator("(")) {
      WITHY_RETURN_IF_ERROR(ParseArguments(node.get()));
    } else if (BeginsTestArgument()) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
      WITHY_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(argument)));
    }
    if (!negated) return node;
    return Prefixed(Type::kNot, std::move(node));
  }

  TokenCursor& tokens_;
};

}  // namespace

absl::StatusOr<ExpressionPtr> ParseExpression(TokenCursor& tokens) {
  return ExpressionParser(tokens).ParseExpression();
}

absl::StatusOr<ExpressionPtr> ParseTuple(TokenCursor& tokens, bool conditional) {
  return ExpressionParser(tokens).ParseTuple(conditional);
}

absl::StatusOr<ExpressionPtr> ParseBlockFilters(TokenCursor& tokens) {
  return ExpressionParser(tokens).ParseFilters(nullptr);
}

}  // namespace withy::jinja
