// Evaluates expressions.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/stack_left.h"
#include "base/status.h"
#include "engine/jinja/characters.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/methods.h"
#include "engine/jinja/operators.h"

namespace withy::jinja {
namespace {

constexpr int kMaxDepth = 100;  // of containers in a value

// What printing or comparing a value takes of the stack for each level of containers.
constexpr size_t kStackPerLevel = kFrameScale * 512;

constexpr std::array<std::string_view, 5> kFunctions = {"range", "dict", "namespace",
                                                        "raise_exception", "strftime_now"};

Value NoSuch(const Value& object, std::string_view name) {
  return Value::Undefined(absl::StrCat("'", ToAbsl(TypeName(object)), "' has no attribute '",
                                       ToAbsl(name.substr(0, 80)), "'"));
}

// Python's index into `size` elements; negative if it is outside.
int64_t IndexInto(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (index < 0) index += count;
  return index >= 0 && index < count ? index : -1;
}

Value LoopField(const LoopState& loop, std::string_view name, const Value& object) {
  const std::vector<Value>& items = loop.items->items;
  const auto index = static_cast<int64_t>(loop.index);
  const auto count = static_cast<int64_t>(items.size());
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(count - index);
  if (name == "revindex0") return Value::Int(count - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == count);
  if (name == "length") return Value::Int(count);
  if (name == "depth") return Value::Int(loop.depth);
  if (name == "depth0") return Value::Int(loop.depth - 1);
  if (name == "previtem") {
    return index > 0 ? items[loop.index - 1] : Value::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < count ? items[loop.index + 1] : Value::Undefined("there is no next item");
  }
  return NoSuch(object, name);
}

// An attribute that is not a key: a method, or a field of a loop or a namespace.
Value OwnAttribute(const Value& object, std::string_view name) {
  if (object.kind() == Kind::kLoop && name != "cycle")
    return LoopField(object.loop(), name, object);
  if (object.kind() == Kind::kNamespace) {
    const Value* value = object.space().values.Find(name);
    return value == nullptr ? NoSuch(object, name) : *value;
  }
  if (!HasMethod(object, name)) return NoSuch(object, name);
  return Value::Of(
      Callable{.type = Callable::Type::kMethod, .name = std::string(name), .receiver = object});
}

}  // namespace

absl::StatusOr<Value> Interpreter::Attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) return UndefinedError(object);
  Value own = OwnAttribute(object, name);
  if (!own.is_undefined() || !object.is_dict()) return own;
  const Value* value = object.dict().Find(name);
  return value == nullptr ? own : *value;
}

absl::StatusOr<Value> Interpreter::Item(const Value& object, const Value& key) {
  if (object.is_undefined()) return UndefinedError(object);
  WITHY_RETURN_IF_ERROR(SpendBytes(key.weight()));
  if (object.is_dict()) {
    if (const Value* value = object.dict().Find(key)) return *value;
  } else if (key.is_integer() && object.is_sequence()) {
    const int64_t index = IndexInto(key.integer(), object.items().size());
    if (index < 0) return Value::Undefined("a list index is out of range");
    return object.items()[static_cast<size_t>(index)];
  } else if (key.is_integer() && object.is_string()) {
    const std::string& bytes = object.text().bytes();
    WITHY_RETURN_IF_ERROR(SpendBytes(bytes.size()));
    const int64_t index = IndexInto(key.integer(), CountChars(bytes));
    if (index < 0) return Value::Undefined("a string index is out of range");
    const size_t begin = ByteOfChar(bytes, static_cast<size_t>(index));
    return Value::String(object.text().Sub(begin, begin + CharBytes(bytes, begin)));
  }
  if (key.is_string()) return OwnAttribute(object, key.text().bytes());
  return NoSuch(object, Str(key).bytes());
}

absl::StatusOr<std::vector<Value>> Interpreter::Iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
    case Kind::kTuple:
      WITHY_RETURN_IF_ERROR(Spend(value.items().size()));
      return value.items();
    case Kind::kDict:
      WITHY_RETURN_IF_ERROR(Spend(value.dict().size()));
      for (const auto& [key, unused] : value.dict().entries()) items.push_back(key);
      return items;
    case Kind::kString: {
      const std::string& bytes = value.text().bytes();
      WITHY_RETURN_IF_ERROR(Spend(bytes.size()));
      for (size_t at = 0; at < bytes.size();) {
        const size_t length = CharBytes(bytes, at);
        items.push_back(Value::String(value.text().Sub(at, at + length)));
        at += length;
      }
      return items;
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("'", ToAbsl(TypeName(value)), "' is not iterable"));
  }
}

Value Interpreter::Lookup(const std::string& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    names_ += scope->names.size() + 1;
    for (const auto& [known, value] : scope->names) {
      if (known == name) return value;
    }
  }
  if (const Value* value = globals_.Find(name)) return *value;
  if (std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end()) {
    return Value::Of(Callable{.type = Callable::Type::kFunction, .name = name});
  }
  return Value::Undefined(absl::StrCat("'", name, "' is undefined"));
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& node) {
  WITHY_RETURN_IF_ERROR(Spend(1));
  if (++nesting_ > options_.max_nesting) {
    --nesting_;
    return TooManyLevels();
  }
  absl::StatusOr<Value> value = EvaluateNode(node);
  --nesting_;
  if (!value.ok()) return value;
  if (value->depth() > kMaxDepth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a value is nested deeper than ", kMaxDepth, " levels"));
  }
  // Whoever uses the value may walk over it without asking again.
  if (!StackAllows(static_cast<size_t>(value->depth()) * kStackPerLevel)) return TooDeep();
  if (value->weight() > options_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a value takes more than ", options_.max_bytes, " bytes"));
  }
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateNode(const Expression& node) {
  using Type = Expression::Type;
  const auto child = [&](size_t i) -> const Expression& { return *node.children[i]; };
  switch (node.type) {
    case Type::kConstant:
      return node.constant;
    case Type::kName:
      return Lookup(node.name);
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
      return EvaluateContainer(node);
    case Type::kNot:
    case Type::kNegate:
    case Type::kPlus:
      return EvaluateUnary(node);
    case Type::kAnd:
    case Type::kOr: {
      WITHY_ASSIGN_OR_RETURN(Value value, Evaluate(child(0)));
      if (Truth(value) == (node.type == Type::kOr)) return value;
      return Evaluate(child(1));
    }
    case Type::kArithmetic: {
      WITHY_ASSIGN_OR_RETURN(const Value left, Evaluate(child(0)));
      WITHY_ASSIGN_OR_RETURN(const Value right, Evaluate(child(1)));
      WITHY_ASSIGN_OR_RETURN(Value result,
                             Arithmetic(node.operators[0], left, right, options_.max_bytes));
      if (!result.is_number()) WITHY_RETURN_IF_ERROR(SpendBytes(result.weight()));
      return result;
    }
    case Type::kConcat:
      return Concat(node);
    case Type::kCompare:
      return EvaluateCompare(node);
    case Type::kConditional: {
      WITHY_ASSIGN_OR_RETURN(const Value condition, Evaluate(child(1)));
      if (Truth(condition)) return Evaluate(child(0));
      if (node.children[2] != nullptr) return Evaluate(child(2));
      return Value::Undefined("the inline if has no else and its condition is false");
    }
    case Type::kAttribute: {
      WITHY_ASSIGN_OR_RETURN(const Value object, Evaluate(child(0)));
      return Attribute(object, node.name);
    }
    case Type::kItem: {
      WITHY_ASSIGN_OR_RETURN(const Value object, Evaluate(child(0)));
      WITHY_ASSIGN_OR_RETURN(const Value key, Evaluate(child(1)));
      return Item(object, key);
    }
    case Type::kSlice:
      return EvaluateSlice(node);
    case Type::kCall:
      return EvaluateCall(node);
    case Type::kFilter: {
      WITHY_ASSIGN_OR_RETURN(const Value input, Evaluate(child(0)));
      return EvaluateFilter(node, &input);
    }
    case Type::kTest: {
      WITHY_ASSIGN_OR_RETURN(const Value input, Evaluate(child(0)));
      WITHY_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
      WITHY_RETURN_IF_ERROR(SpendOn(arguments));
      WITHY_ASSIGN_OR_RETURN(const bool result, node.test(*this, input, arguments));
      return Value::Bool(result);
    }
  }
  return absl::InternalError("an expression of no type");
}

absl::StatusOr<Value> Interpreter::EvaluateUnary(const Expression& node) {
  WITHY_ASSIGN_OR_RETURN(const Value value, Evaluate(*node.children[0]));
  switch (node.type) {
    case Expression::Type::kNot:
      return Value::Bool(!Truth(value));
    case Expression::Type::kNegate:
      return Negated(value);
    default:
      return Arithmetic(Operator::kAdd, Value::Int(0), value, options_.max_bytes);
  }
}

absl::StatusOr<Value> Interpreter::EvaluateContainer(const Expression& node) {
  std::vector<Value> values;
  for (const ExpressionPtr& item : node.children) {
    WITHY_ASSIGN_OR_RETURN(Value value, Evaluate(*item));
    values.push_back(std::move(value));
  }
  if (node.type == Expression::Type::kList) return Value::List(std::move(values));
  if (node.type == Expression::Type::kTuple) return Value::Tuple(std::move(values));
  Dict dict;
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    WITHY_RETURN_IF_ERROR(SpendBytes(values[i].weight()));
    WITHY_RETURN_IF_ERROR(dict.Set(values[i], std::move(values[i + 1])));
  }
  return Value::Of(std::move(dict));
}

absl::StatusOr<Value> Interpreter::Concat(const Expression& node) {
  Text text;
  for (const ExpressionPtr& part : node.children) {
    WITHY_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    WITHY_ASSIGN_OR_RETURN(const Text printed, Printed(value));
    text.Append(printed);
  }
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expression& node) {
  WITHY_ASSIGN_OR_RETURN(Value left, Evaluate(*node.children[0]));
  for (size_t i = 0; i < node.operators.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(Value right, Evaluate(*node.children[i + 1]));
    // A dict finds a key without a walk.
    WITHY_RETURN_IF_ERROR(SpendBytes(left.weight()));
    if (!right.is_dict()) WITHY_RETURN_IF_ERROR(SpendBytes(right.weight()));
    WITHY_ASSIGN_OR_RETURN(const bool holds, Compare(node.operators[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expression& node) {
  WITHY_ASSIGN_OR_RETURN(const Value object, Evaluate(*node.children[0]));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    bounds[i] = Value::None();
    if (node.children[i + 1] == nullptr) continue;
    WITHY_ASSIGN_OR_RETURN(bounds[i], Evaluate(*node.children[i + 1]));
    if (!bounds[i].is_none() && !bounds[i].is_integer()) {
      return absl::InvalidArgumentError("slice indices must be integers");
    }
  }
  if (object.is_undefined()) return UndefinedError(object);
  if (!object.is_sequence() && !object.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(TypeName(object)), "' has no slices"));
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(object));
  const auto count = static_cast<int64_t>(items.size());
  const int64_t step = bounds[2].is_none() ? 1 : bounds[2].integer();
  if (step == 0) return absl::InvalidArgumentError("a slice has a step of 0");
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? count : count - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t index = value.integer();
    return std::clamp(index < 0 ? std::max(index, -count - 1) + count : index, low, high);
  };
  const int64_t start = bound(bounds[0], step > 0 ? low : high);
  const int64_t stop = bound(bounds[1], step > 0 ? high : low);
  std::vector<Value> kept;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    kept.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (object.kind() == Kind::kTuple) return Value::Tuple(std::move(kept));
  if (object.kind() == Kind::kList) return Value::List(std::move(kept));
  Text text;
  for (const Value& part : kept) text.Append(part.text());
  return Value::String(std::move(text));
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expression& node) {
  Arguments arguments;
  for (size_t i = 1; i < node.children.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(Value value, Evaluate(*node.children[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, expression] : node.keywords) {
    WITHY_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expression& node) {
  WITHY_ASSIGN_OR_RETURN(const Value callee, Evaluate(*node.children[0]));
  if (callee.is_undefined()) return UndefinedError(callee);
  if (callee.kind() != Kind::kCallable) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(TypeName(callee)), "' is not callable"));
  }
  WITHY_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
  return Call(callee.callable(), arguments);
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expression& node, const Value* input) {
  // A filter behind a block has its input at the innermost place of the chain.
  if (node.children[0] != nullptr && node.type == Expression::Type::kFilter && input != nullptr) {
    const Expression* inner = node.children[0].get();
    while (inner != nullptr && inner->type == Expression::Type::kFilter) {
      inner = inner->children[0].get();
    }
    if (inner == nullptr) {
      WITHY_ASSIGN_OR_RETURN(const Value value, EvaluateFilter(*node.children[0], input));
      WITHY_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
      WITHY_RETURN_IF_ERROR(SpendOn(arguments));
      return node.filter(*this, value, arguments);
    }
  }
  WITHY_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node));
  WITHY_RETURN_IF_ERROR(SpendOn(arguments));
  return node.filter(*this, *input, arguments);
}

}  // namespace withy::jinja
