// The tests of Jinja: `value is test`.
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/methods.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/parser.h"

namespace withy::jinja {
namespace {

template <Kind kind>
absl::StatusOr<bool> IsKind(Interpreter&, const Value& value, const Arguments&) {
  return value.kind() == kind;
}

absl::StatusOr<bool> IsDefined(Interpreter&, const Value& value, const Arguments&) {
  return !value.is_undefined();
}

absl::StatusOr<bool> IsNumber(Interpreter&, const Value& value, const Arguments&) {
  return value.is_number();
}

template <bool wanted>
absl::StatusOr<bool> IsBool(Interpreter&, const Value& value, const Arguments&) {
  return value.kind() == Kind::kBool && (value.integer() != 0) == wanted;
}

// Undefined iterates as an empty list does.
absl::StatusOr<bool> IsIterable(Interpreter&, const Value& value, const Arguments&) {
  return value.is_string() || value.is_sequence() || value.is_dict() || value.is_undefined() ||
         value.kind() == Kind::kLoop;
}

absl::StatusOr<bool> IsSequence(Interpreter&, const Value& value, const Arguments&) {
  return value.is_string() || value.is_sequence() || value.is_dict() || value.is_undefined();
}

absl::StatusOr<const Value*> Other(const Arguments& arguments) {
  if (arguments.positional.size() != 1) {
    return absl::InvalidArgumentError("the test needs one argument");
  }
  return &arguments.positional[0];
}

template <Operator op>
absl::StatusOr<bool> Compares(Interpreter& in, const Value& value, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(const Value* other, Other(arguments));
  WITHY_RETURN_IF_ERROR(in.SpendBytes(value.weight()));
  return Compare(op, value, *other);
}

absl::StatusOr<bool> IsSame(Interpreter& in, const Value& value, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(const Value* other, Other(arguments));
  WITHY_RETURN_IF_ERROR(in.SpendBytes(value.weight()));
  return value.kind() == other->kind() && Equal(value, *other);
}

template <int64_t remainder>
absl::StatusOr<bool> HasRemainderOfTwo(Interpreter& in, const Value& value, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(const Value rest, Arithmetic(Operator::kModulo, value, Value::Int(2),
                                                      in.options().max_bytes));
  return rest.is_number() && rest.number() == remainder;
}

absl::StatusOr<bool> IsDivisible(Interpreter& in, const Value& value, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(const Value* other, Other(arguments));
  WITHY_ASSIGN_OR_RETURN(const Value rest,
                         Arithmetic(Operator::kModulo, value, *other, in.options().max_bytes));
  return !Truth(rest);
}

template <bool upper>
absl::StatusOr<bool> IsCase(Interpreter& in, const Value& value, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(Text text, in.Printed(value));
  WITHY_ASSIGN_OR_RETURN(const Value result, CallMethod(in, Value::String(std::move(text)),
                                                        upper ? "isupper" : "islower", {}));
  return Truth(result);
}

}  // namespace

TestFunction FindTest(std::string_view name) {
  static const auto* tests = new std::map<std::string_view, TestFunction>{
      {"boolean", IsKind<Kind::kBool>},
      {"callable", IsKind<Kind::kCallable>},
      {"defined", IsDefined},
      {"divisibleby", IsDivisible},
      {"eq", Compares<Operator::kEqual>},
      {"==", Compares<Operator::kEqual>},
      {"equalto", Compares<Operator::kEqual>},
      {"even", HasRemainderOfTwo<0>},
      {"false", IsBool<false>},
      {"float", IsKind<Kind::kFloat>},
      {"ge", Compares<Operator::kGreaterEqual>},
      {">=", Compares<Operator::kGreaterEqual>},
      {"gt", Compares<Operator::kGreater>},
      {">", Compares<Operator::kGreater>},
      {"greaterthan", Compares<Operator::kGreater>},
      {"in", Compares<Operator::kIn>},
      {"integer", IsKind<Kind::kInt>},
      {"iterable", IsIterable},
      {"le", Compares<Operator::kLessEqual>},
      {"<=", Compares<Operator::kLessEqual>},
      {"lessthan", Compares<Operator::kLess>},
      {"lower", IsCase<false>},
      {"lt", Compares<Operator::kLess>},
      {"<", Compares<Operator::kLess>},
      {"mapping", IsKind<Kind::kDict>},
      {"ne", Compares<Operator::kNotEqual>},
      {"!=", Compares<Operator::kNotEqual>},
      {"none", IsKind<Kind::kNone>},
      {"number", IsNumber},
      {"odd", HasRemainderOfTwo<1>},
      {"sameas", IsSame},
      {"sequence", IsSequence},
      {"string", IsKind<Kind::kString>},
      {"true", IsBool<true>},
      {"undefined", IsKind<Kind::kUndefined>},
      {"upper", IsCase<true>},
  };
  const auto found = tests->find(name);
  return found == tests->end() ? nullptr : found->second;
}

}  // namespace withy::jinja
