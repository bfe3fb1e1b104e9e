// Recursive descent, in Jinja's order of precedence: conditional, or, and, not, comparison, + -,
// ~, * / // %, **, signs, postfix, filters and tests.
#include "engine/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/lexer.h"

namespace withy::jinja {
namespace {

using Type = Expression::Type;

std::optional<Operator> ComparisonNamed(std::string_view text) {
  if (text == "==") return Operator::kEqual;
  if (text == "!=") return Operator::kNotEqual;
  if (text == "<") return Operator::kLess;
  if (text == "<=") return Operator::kLessEqual;
  if (text == ">") return Operator::kGreater;
  if (text == ">=") return Operator::kGreaterEqual;
  return std::nullopt;
}

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

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Block> Run() {
    WITHY_ASSIGN_OR_RETURN(Block block, ParseBlock({}));
    return block;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  // --- Tokens

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Skip() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  static bool Is(const Token& token, Token::Type type, std::string_view text) {
    return token.type == type && token.text == text;
  }
  bool IsName(std::string_view name) const { return Is(now(), Token::Type::kName, name); }
  bool IsOperator(std::string_view op) const { return Is(now(), Token::Type::kOperator, op); }
  bool SkipName(std::string_view name) {
    const bool is = IsName(name);
    if (is) Skip();
    return is;
  }
  bool SkipOperator(std::string_view op) {
    const bool is = IsOperator(op);
    if (is) Skip();
    return is;
  }
  absl::Status Unexpected(std::string_view wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", now().line, ": expected ", ToAbsl(wanted), ", found ", Shown(now())));
  }
  absl::Status Unsupported(std::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat("line ", now().line, ": ", ToAbsl(what), " is not supported"));
  }
  absl::Status ExpectOperator(std::string_view op) {
    return SkipOperator(op) ? absl::OkStatus() : Unexpected(op);
  }
  absl::Status ExpectBlockEnd() {
    if (now().type != Token::Type::kBlockEnd) return Unexpected("%}");
    Skip();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ExpectName() {
    if (now().type != Token::Type::kName) return Unexpected("a name");
    std::string name = now().text;
    Skip();
    return name;
  }

  // Counts how deep the parser is; the C++ stack is bounded by it.
  class Level {
   public:
    explicit Level(int* levels) : levels_(levels) { ++*levels_; }
    ~Level() { --*levels_; }
    bool too_deep() const { return *levels_ > kMaxNesting; }

   private:
    int* levels_;
  };
  absl::Status TooDeep() const {
    return absl::UnimplementedError(
        absl::StrCat("line ", now().line, ": nested more than ", kMaxNesting, " levels deep"));
  }

  // --- Statements

  // Until a block tag whose name is one of `ends`, which is left as the present token.
  absl::StatusOr<Block> ParseBlock(Names ends) {
    const Level level(&levels_);
    if (level.too_deep()) return TooDeep();
    Block block;
    while (now().type != Token::Type::kEnd) {
      const int line = now().line;
      absl::StatusOr<std::unique_ptr<Statement>> statement;
      if (now().type == Token::Type::kText) {
        auto text = std::make_unique<TextStatement>();
        text->text = Text(now().text);
        Skip();
        statement = std::move(text);
      } else if (now().type == Token::Type::kOutputBegin) {
        statement = ParseOutput();
      } else {
        Skip();  // {%
        if (std::any_of(ends.begin(), ends.end(), [&](auto name) { return IsName(name); })) {
          return block;
        }
        statement = ParseStatement();
      }
      if (!statement.ok()) return statement.status();
      if (*statement == nullptr) continue;
      (*statement)->line = line;
      block.push_back(*std::move(statement));
    }
    if (ends.size() > 0) return Unexpected(absl::StrCat("{% ", ToAbsl(*(ends.end() - 1)), " %}"));
    return block;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseOutput() {
    Skip();
    auto output = std::make_unique<OutputStatement>();
    WITHY_ASSIGN_OR_RETURN(output->expression, ParseTuple(true));
    if (now().type != Token::Type::kOutputEnd) return Unexpected("}}");
    Skip();
    return output;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseStatement() {
    WITHY_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (name == "for") return ParseFor();
    if (name == "if") return ParseIf();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "call") return ParseCallBlock();
    if (name == "filter") return ParseFilterBlock();
    if (name == "with") return ParseWith();
    if (name == "generation") return ParseGeneration();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return Unsupported(absl::StrCat("{% ", name, " %} outside of a loop"));
      WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
      if (name == "break") return std::make_unique<BreakStatement>();
      return std::make_unique<ContinueStatement>();
    }
    for (const char* known : {"include", "import", "from", "extends", "block", "autoescape", "do",
                              "trans", "print", "debug"}) {
      if (name == known) return Unsupported(absl::StrCat("{% ", name, " %}"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("line ", now().line, ": unknown tag '", name.substr(0, 40), "'"));
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseFor() {
    auto loop = std::make_unique<ForStatement>();
    WITHY_ASSIGN_OR_RETURN(loop->target, ParseTarget(/*namespaces=*/false));
    if (!SkipName("in")) return Unexpected("in");
    WITHY_ASSIGN_OR_RETURN(loop->over, ParseTuple(false));
    if (SkipName("if")) {
      WITHY_ASSIGN_OR_RETURN(loop->condition, ParseExpression());
    }
    if (IsName("recursive")) return Unsupported("a recursive loop");
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    ++loops_;
    auto body = ParseBlock({"else", "endfor"});
    --loops_;
    if (!body.ok()) return body.status();
    loop->body = *std::move(body);
    if (SkipName("else")) {
      WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
      WITHY_ASSIGN_OR_RETURN(loop->otherwise, ParseBlock({"endfor"}));
    }
    Skip();  // endfor
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    return loop;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseIf() {
    auto statement = std::make_unique<IfStatement>();
    while (true) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseTupleOrCondition());
      WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
      WITHY_ASSIGN_OR_RETURN(Block body, ParseBlock({"elif", "else", "endif"}));
      statement->branches.emplace_back(std::move(condition), std::move(body));
      if (!SkipName("elif")) break;
    }
    if (SkipName("else")) {
      WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
      WITHY_ASSIGN_OR_RETURN(Block body, ParseBlock({"endif"}));
      statement->branches.emplace_back(nullptr, std::move(body));
    }
    Skip();  // endif
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    return statement;
  }

  // Jinja takes no conditional expression behind {% if %}.
  absl::StatusOr<ExpressionPtr> ParseTupleOrCondition() { return ParseTuple(false); }

  // The body of a tag that captures its output. {% break %} cannot leave it.
  absl::StatusOr<Block> ParseCaptured(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    auto body = ParseBlock({end});
    loops_ = loops;
    if (!body.ok()) return body.status();
    Skip();  // the end tag's name
    if (end == "endmacro" && now().type == Token::Type::kName) Skip();
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    return body;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseSet() {
    WITHY_ASSIGN_OR_RETURN(Target target, ParseTarget(/*namespaces=*/true));
    if (SkipOperator("=")) {
      auto set = std::make_unique<SetStatement>();
      set->target = std::move(target);
      WITHY_ASSIGN_OR_RETURN(set->value, ParseTuple(true));
      WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
      return set;
    }
    auto set = std::make_unique<SetBlockStatement>();
    set->target = std::move(target);
    if (IsOperator("|")) {
      WITHY_ASSIGN_OR_RETURN(set->filter, ParseFilters(nullptr));
    }
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(set->body, ParseCaptured("endset"));
    return set;
  }

  absl::Status ParseParameters(MacroStatement* macro) {
    WITHY_RETURN_IF_ERROR(ExpectOperator("("));
    while (!SkipOperator(")")) {
      if (!macro->parameters.empty()) WITHY_RETURN_IF_ERROR(ExpectOperator(","));
      WITHY_ASSIGN_OR_RETURN(std::string name, ExpectName());
      ExpressionPtr value;
      if (SkipOperator("=")) {
        WITHY_ASSIGN_OR_RETURN(value, ParseExpression());
      }
      macro->parameters.emplace_back(std::move(name), std::move(value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseMacro() {
    auto macro = std::make_unique<MacroStatement>();
    WITHY_ASSIGN_OR_RETURN(macro->name, ExpectName());
    WITHY_RETURN_IF_ERROR(ParseParameters(macro.get()));
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(macro->body, ParseCaptured("endmacro"));
    return macro;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseCallBlock() {
    auto block = std::make_unique<CallBlockStatement>();
    block->caller.name = "caller";
    if (IsOperator("(")) WITHY_RETURN_IF_ERROR(ParseParameters(&block->caller));
    WITHY_ASSIGN_OR_RETURN(block->call, ParseExpression());
    if (block->call->type != Type::kCall) return Unexpected("a call");
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(block->caller.body, ParseCaptured("endcall"));
    return block;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseFilterBlock() {
    auto block = std::make_unique<FilterBlockStatement>();
    WITHY_ASSIGN_OR_RETURN(block->filter, ParseFilters(nullptr));
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(block->body, ParseCaptured("endfilter"));
    return block;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseWith() {
    auto with = std::make_unique<WithStatement>();
    while (now().type != Token::Type::kBlockEnd) {
      if (!with->bindings.empty()) WITHY_RETURN_IF_ERROR(ExpectOperator(","));
      WITHY_ASSIGN_OR_RETURN(Target target, ParseOneTarget(false));
      WITHY_RETURN_IF_ERROR(ExpectOperator("="));
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      with->bindings.emplace_back(std::move(target), std::move(value));
    }
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    WITHY_ASSIGN_OR_RETURN(with->body, ParseBlock({"endwith"}));
    Skip();  // endwith
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    return with;
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseGeneration() {
    WITHY_RETURN_IF_ERROR(ExpectBlockEnd());
    auto scope = std::make_unique<WithStatement>();
    WITHY_ASSIGN_OR_RETURN(scope->body, ParseCaptured("endgeneration"));
    return scope;
  }

  // --- Targets

  absl::StatusOr<Target> ParseOneTarget(bool namespaces) {
    const Level level(&levels_);
    if (level.too_deep()) return TooDeep();
    Target target;
    if (SkipOperator("(")) {
      WITHY_ASSIGN_OR_RETURN(target, ParseTarget(namespaces));
      WITHY_RETURN_IF_ERROR(ExpectOperator(")"));
      return target;
    }
    WITHY_ASSIGN_OR_RETURN(target.name, ExpectName());
    static const std::set<std::string_view> kConstants = {"true", "false", "none",
                                                          "True", "False", "None"};
    if (kConstants.contains(target.name)) return Unexpected("a name to assign to");
    if (namespaces && SkipOperator(".")) {
      WITHY_ASSIGN_OR_RETURN(target.attribute, ExpectName());
    }
    return target;
  }

  absl::StatusOr<Target> ParseTarget(bool namespaces) {
    WITHY_ASSIGN_OR_RETURN(Target first, ParseOneTarget(namespaces));
    if (!IsOperator(",")) return first;
    Target all;
    all.several.push_back(std::move(first));
    while (SkipOperator(",")) {
      if (IsName("in") || IsOperator("=") || IsOperator(")")) break;
      WITHY_ASSIGN_OR_RETURN(Target target, ParseOneTarget(namespaces));
      all.several.push_back(std::move(target));
    }
    return all;
  }

  // --- Expressions

  ExpressionPtr Make(Type type) const {
    auto node = std::make_unique<Expression>();
    node->type = type;
    node->line = now().line;
    return node;
  }

  // Adds a child to `node`. The parser's own depth is bounded, but a + b + c + … nests without it.
  absl::Status Adopt(Expression* node, ExpressionPtr child) const {
    if (child != nullptr) node->nesting = std::max(node->nesting, child->nesting + 1);
    node->children.push_back(std::move(child));
    return node->nesting > kMaxNesting ? TooDeep() : absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> Pair(Type type, ExpressionPtr left, ExpressionPtr right,
                                     std::vector<Operator> operators = {}) const {
    ExpressionPtr node = Make(type);
    node->operators = std::move(operators);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(left)));
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(right)));
    return node;
  }

  // One expression, or a tuple of several without brackets.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool conditional, bool bracketed = false) {
    ExpressionPtr tuple = Make(Type::kTuple);
    bool several = false;
    while (true) {
      if (!tuple->children.empty()) WITHY_RETURN_IF_ERROR(ExpectOperator(","));
      const bool end = now().type == Token::Type::kOutputEnd ||
                       now().type == Token::Type::kBlockEnd || IsOperator(")");
      if (end) break;
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr item, conditional ? ParseExpression() : ParseOr());
      WITHY_RETURN_IF_ERROR(Adopt(tuple.get(), std::move(item)));
      if (!IsOperator(",")) break;
      several = true;
    }
    if (several) return tuple;
    if (tuple->children.size() == 1) return std::move(tuple->children[0]);
    if (!bracketed) return Unexpected("an expression");
    return tuple;
  }

  absl::StatusOr<ExpressionPtr> ParseExpression() {
    const Level level(&levels_);
    if (level.too_deep()) return TooDeep();
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
    while (SkipName("if")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
      ExpressionPtr otherwise;
      if (SkipName("else")) {
        WITHY_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr node,
                             Pair(Type::kConditional, std::move(value), std::move(condition)));
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(otherwise)));
      value = std::move(node);
    }
    return value;
  }

  absl::StatusOr<ExpressionPtr> ParseOr() {
    const Level level(&levels_);
    if (level.too_deep()) return TooDeep();
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
    while (SkipName("or")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
      WITHY_ASSIGN_OR_RETURN(left, Pair(Type::kOr, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseAnd() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
    while (SkipName("and")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
      WITHY_ASSIGN_OR_RETURN(left, Pair(Type::kAnd, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> Prefixed(Type type, absl::StatusOr<ExpressionPtr> operand) {
    if (!operand.ok()) return operand.status();
    ExpressionPtr node = Make(type);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), *std::move(operand)));
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseNot() {
    const Level level(&levels_);
    if (level.too_deep()) return TooDeep();
    if (SkipName("not")) return Prefixed(Type::kNot, ParseNot());
    return ParseComparison();
  }

  absl::StatusOr<ExpressionPtr> ParseComparison() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
    ExpressionPtr node;
    while (true) {
      std::optional<Operator> op;
      if (now().type == Token::Type::kOperator) op = ComparisonNamed(now().text);
      if (IsName("in")) op = Operator::kIn;
      if (IsName("not") && Is(next(), Token::Type::kName, "in")) {
        Skip();
        op = Operator::kNotIn;
      }
      if (!op) break;
      Skip();
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
    while (IsOperator("+") || IsOperator("-")) {
      const Operator op = now().text == "+" ? Operator::kAdd : Operator::kSubtract;
      Skip();
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcat());
      WITHY_ASSIGN_OR_RETURN(left,
                             Pair(Type::kArithmetic, std::move(left), std::move(right), {op}));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseConcat() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
    if (!IsOperator("~")) return first;
    ExpressionPtr node = Make(Type::kConcat);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(first)));
    while (SkipOperator("~")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseProduct());
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(operand)));
    }
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseProduct() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
    while (true) {
      const Operator op = IsOperator("*")    ? Operator::kMultiply
                          : IsOperator("/")  ? Operator::kDivide
                          : IsOperator("//") ? Operator::kFloorDivide
                          : IsOperator("%")  ? Operator::kModulo
                                             : Operator::kAdd;
      if (op == Operator::kAdd) return left;
      Skip();
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
      WITHY_ASSIGN_OR_RETURN(left,
                             Pair(Type::kArithmetic, std::move(left), std::move(right), {op}));
    }
  }

  absl::StatusOr<ExpressionPtr> ParsePower() {
    WITHY_ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(true));
    while (SkipOperator("**")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary(true));
      WITHY_ASSIGN_OR_RETURN(
          left, Pair(Type::kArithmetic, std::move(left), std::move(right), {Operator::kPower}));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseUnary(bool filters) {
    const Level level(&levels_);
    if (level.too_deep()) return TooDeep();
    ExpressionPtr node;
    if (SkipOperator("-")) {
      WITHY_ASSIGN_OR_RETURN(node, Prefixed(Type::kNegate, ParseUnary(false)));
    } else if (SkipOperator("+")) {
      WITHY_ASSIGN_OR_RETURN(node, Prefixed(Type::kPlus, ParseUnary(false)));
    } else {
      WITHY_ASSIGN_OR_RETURN(node, ParsePrimary());
    }
    WITHY_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
    if (!filters) return node;
    return ParseFilters(std::move(node));
  }

  ExpressionPtr Constant(Value value) const {
    ExpressionPtr node = Make(Type::kConstant);
    node->constant = std::move(value);
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParsePrimary() {
    const Token token = now();
    switch (token.type) {
      case Token::Type::kName: {
        Skip();
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
        for (; now().type == Token::Type::kString; Skip()) text += now().text;
        return Constant(Value::String(text));
      }
      case Token::Type::kInteger: {
        int64_t number = 0;
        if (!absl::SimpleAtoi(token.text, &number))
          return Unsupported("an integer of 64 bits or more");
        Skip();
        return Constant(Value::Int(number));
      }
      case Token::Type::kFloat: {
        double number = 0;
        if (!absl::SimpleAtod(token.text, &number)) return Unexpected("a number");
        Skip();
        return Constant(Value::Float(number));
      }
      default:
        break;
    }
    if (SkipOperator("(")) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr node, ParseTuple(true, /*bracketed=*/true));
      WITHY_RETURN_IF_ERROR(ExpectOperator(")"));
      return node;
    }
    if (SkipOperator("[")) return ParseList();
    if (SkipOperator("{")) return ParseDict();
    return Unexpected("an expression");
  }

  absl::StatusOr<ExpressionPtr> ParseList() {
    ExpressionPtr list = Make(Type::kList);
    while (!IsOperator("]")) {
      if (!list->children.empty()) WITHY_RETURN_IF_ERROR(ExpectOperator(","));
      if (IsOperator("]")) break;
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
      WITHY_RETURN_IF_ERROR(Adopt(list.get(), std::move(item)));
    }
    Skip();
    return list;
  }

  absl::StatusOr<ExpressionPtr> ParseDict() {
    ExpressionPtr dict = Make(Type::kDict);
    while (!IsOperator("}")) {
      if (!dict->children.empty()) WITHY_RETURN_IF_ERROR(ExpectOperator(","));
      if (IsOperator("}")) break;
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
      WITHY_RETURN_IF_ERROR(ExpectOperator(":"));
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      WITHY_RETURN_IF_ERROR(Adopt(dict.get(), std::move(key)));
      WITHY_RETURN_IF_ERROR(Adopt(dict.get(), std::move(value)));
    }
    Skip();
    return dict;
  }

  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr node) {
    while (true) {
      if (IsOperator(".")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseAttribute(std::move(node)));
      } else if (IsOperator("[")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseItem(std::move(node)));
      } else if (IsOperator("(")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
      } else {
        return node;
      }
    }
  }

  absl::StatusOr<ExpressionPtr> ParseAttribute(ExpressionPtr object) {
    Skip();  // .
    int64_t index = 0;
    if (now().type == Token::Type::kInteger && absl::SimpleAtoi(now().text, &index)) {
      Skip();
      return Pair(Type::kItem, std::move(object), Constant(Value::Int(index)));
    }
    ExpressionPtr node = Make(Type::kAttribute);
    WITHY_ASSIGN_OR_RETURN(node->name, ExpectName());
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(object)));
    return node;
  }

  absl::StatusOr<ExpressionPtr> ParseItem(ExpressionPtr object) {
    Skip();  // [
    ExpressionPtr start;
    if (!IsOperator(":")) {
      WITHY_ASSIGN_OR_RETURN(start, ParseExpression());
      if (SkipOperator("]")) return Pair(Type::kItem, std::move(object), std::move(start));
    }
    ExpressionPtr slice = Make(Type::kSlice);
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(object)));
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(start)));
    WITHY_RETURN_IF_ERROR(ExpectOperator(":"));
    ExpressionPtr stop;
    if (!IsOperator(":") && !IsOperator("]")) {
      WITHY_ASSIGN_OR_RETURN(stop, ParseExpression());
    }
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(stop)));
    ExpressionPtr step;
    if (SkipOperator(":") && !IsOperator("]")) {
      WITHY_ASSIGN_OR_RETURN(step, ParseExpression());
    }
    WITHY_RETURN_IF_ERROR(Adopt(slice.get(), std::move(step)));
    WITHY_RETURN_IF_ERROR(ExpectOperator("]"));
    return slice;
  }

  // Arguments in brackets are added to `node`.
  absl::Status ParseArguments(Expression* node) {
    Skip();  // (
    bool first = true;
    while (!SkipOperator(")")) {
      if (!first) {
        WITHY_RETURN_IF_ERROR(ExpectOperator(","));
        if (SkipOperator(")")) break;
      }
      first = false;
      if (IsOperator("*") || IsOperator("**")) return Unsupported("a call with *arguments");
      if (now().type == Token::Type::kName && Is(next(), Token::Type::kOperator, "=")) {
        WITHY_ASSIGN_OR_RETURN(std::string name, ExpectName());
        Skip();  // =
        WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
        node->nesting = std::max(node->nesting, value->nesting + 1);
        node->keywords.emplace_back(std::move(name), std::move(value));
      } else {
        if (!node->keywords.empty()) return Unexpected("a named argument");
        WITHY_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
        WITHY_RETURN_IF_ERROR(Adopt(node, std::move(value)));
      }
    }
    return node->nesting > kMaxNesting ? TooDeep() : absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> ParseCall(ExpressionPtr callee) {
    ExpressionPtr node = Make(Type::kCall);
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(callee)));
    WITHY_RETURN_IF_ERROR(ParseArguments(node.get()));
    return node;
  }

  absl::StatusOr<std::string> ParseDottedName() {
    WITHY_ASSIGN_OR_RETURN(std::string name, ExpectName());
    while (SkipOperator(".")) {
      WITHY_ASSIGN_OR_RETURN(const std::string part, ExpectName());
      absl::StrAppend(&name, ".", part);
    }
    return name;
  }

  // | filter, `is` test and calls behind `node`. Null: behind a block tag, where a filter's name
  // comes first or behind |.
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr node) {
    bool block = node == nullptr;
    while (true) {
      if (IsOperator("|") || block) {
        SkipOperator("|");
        block = false;
        WITHY_ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
      } else if (IsName("is") && node != nullptr) {
        WITHY_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
      } else if (IsOperator("(")) {
        WITHY_ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
      } else {
        return node;
      }
    }
  }

  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr input) {
    ExpressionPtr node = Make(Type::kFilter);
    WITHY_ASSIGN_OR_RETURN(node->name, ParseDottedName());
    node->filter = FindFilter(node->name);
    if (node->filter == nullptr) return Unsupported(absl::StrCat("the filter '", node->name, "'"));
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(input)));
    if (IsOperator("(")) WITHY_RETURN_IF_ERROR(ParseArguments(node.get()));
    return node;
  }

  // Whether the present token begins the argument of a test without brackets.
  bool BeginsTestArgument() const {
    switch (now().type) {
      case Token::Type::kName:
        return !IsName("else") && !IsName("or") && !IsName("and");
      case Token::Type::kString:
      case Token::Type::kInteger:
      case Token::Type::kFloat:
        return true;
      default:
        return IsOperator("[") || IsOperator("{");
    }
  }

  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr input) {
    Skip();  // is
    const bool negated = SkipName("not");
    ExpressionPtr node = Make(Type::kTest);
    WITHY_ASSIGN_OR_RETURN(node->name, ParseDottedName());
    node->test = FindTest(node->name);
    if (node->test == nullptr) return Unsupported(absl::StrCat("the test '", node->name, "'"));
    WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(input)));
    if (IsOperator("(")) {
      WITHY_RETURN_IF_ERROR(ParseArguments(node.get()));
    } else if (BeginsTestArgument()) {
      WITHY_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
      WITHY_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      WITHY_RETURN_IF_ERROR(Adopt(node.get(), std::move(argument)));
    }
    if (!negated) return node;
    return Prefixed(Type::kNot, std::move(node));
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int levels_ = 0;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Block> Parse(std::string_view source) {
  WITHY_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace withy::jinja
