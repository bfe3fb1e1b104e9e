// The program that a template's text is parsed into. Neighbours: parser.h makes it, interpreter.h
// runs it. Immutable once parsed; nesting is at most kMaxNesting deep. Destroyed level by level.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flat_destruction.h"
#include "engine/jinja/value.h"

namespace withy::jinja {

inline constexpr int kMaxNesting = 150;

class Interpreter;
struct Arguments;
using FilterFunction = absl::StatusOr<Value> (*)(Interpreter&, const Value& input,
                                                 const Arguments& arguments);
using TestFunction = absl::StatusOr<bool> (*)(Interpreter&, const Value& input,
                                              const Arguments& arguments);

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Type {
    kConstant,     // constant
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, value, …
    kNot,          // children: operand
    kNegate,       // children: operand
    kPlus,         // children: operand
    kAnd,          // children: left, right
    kOr,           // children: left, right
    kArithmetic,   // operators[0], children: left, right
    kConcat,       // children
    kCompare,      // children: first, then one for each of operators
    kConditional,  // children: value, condition, else (may be null)
    kAttribute,    // children: object; name
    kItem,         // children: object, index
    kSlice,        // children: object, start, stop, step (each of the last three may be null)
    kCall,         // children: callee, arguments; keywords
    kFilter,       // filter; children: input, arguments; keywords. Input null: a block's text
    kTest,         // test; children: input, arguments; keywords
  };

  Expression() = default;
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;
  ~Expression() {
    for (auto& [keyword, value] : keywords) children.push_back(std::move(value));
    if (!children.empty()) DestroyFlat(std::move(children));
  }

  Type type = Type::kConstant;
  int line = 0;
  int nesting = 1;
  std::string name;  // also of a filter or test, for errors
  Value constant;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<Operator> operators;
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
};

// What is assigned to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;        // not empty: of the namespace `name`
  std::vector<Target> several;  // not empty: `name` is
};

struct Statement;

class Block : public std::vector<std::unique_ptr<Statement>> {
 public:
  Block() = default;
  Block(Block&&) = default;
  Block& operator=(Block&&) = default;
  ~Block();
};

struct Statement {
  enum class Type {
    kText,
    kOutput,
    kIf,
    kFor,
    kSet,
    kSetBlock,
    kMacro,
    kCallBlock,
    kFilterBlock,
    kWith,
    kBreak,
    kContinue,
  };
  explicit Statement(Type what) : type(what) {}
  virtual ~Statement() = default;

  const Type type;
  int line = 0;
};

inline Block::~Block() {
  if (!empty())
    DestroyFlat(std::move(static_cast<std::vector<std::unique_ptr<Statement>>&>(*this)));
}

struct TextStatement : Statement {
  TextStatement() : Statement(Type::kText) {}
  Text text;
};

// {{ expression }}
struct OutputStatement : Statement {
  OutputStatement() : Statement(Type::kOutput) {}
  ExpressionPtr expression;
};

struct IfStatement : Statement {
  IfStatement() : Statement(Type::kIf) {}
  std::vector<std::pair<ExpressionPtr, Block>> branches;  // a null condition is the else's
};

struct ForStatement : Statement {
  ForStatement() : Statement(Type::kFor) {}
  Target target;
  ExpressionPtr over;
  ExpressionPtr condition;  // may be null
  Block body;
  Block otherwise;
};

struct SetStatement : Statement {
  SetStatement() : Statement(Type::kSet) {}
  Target target;
  ExpressionPtr value;
};

// {% set x %}…{% endset %}
struct SetBlockStatement : Statement {
  SetBlockStatement() : Statement(Type::kSetBlock) {}
  Target target;
  ExpressionPtr filter;  // may be null
  Block body;
};

// Also the body of a {% call %}, under the name "caller".
struct MacroStatement : Statement {
  MacroStatement() : Statement(Type::kMacro) {}
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>>
      parameters;  // with defaults, which may be null
  Block body;
};

struct CallBlockStatement : Statement {
  CallBlockStatement() : Statement(Type::kCallBlock) {}
  ExpressionPtr call;  // of type kCall
  MacroStatement caller;
};

struct FilterBlockStatement : Statement {
  FilterBlockStatement() : Statement(Type::kFilterBlock) {}
  ExpressionPtr filter;
  Block body;
};

// {% with %} and {% generation %}: a scope of its own.
struct WithStatement : Statement {
  WithStatement() : Statement(Type::kWith) {}
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  Block body;
};

struct BreakStatement : Statement {
  BreakStatement() : Statement(Type::kBreak) {}
};

struct ContinueStatement : Statement {
  ContinueStatement() : Statement(Type::kContinue) {}
};

}  // namespace withy::jinja
