// Filters that make numbers.
#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "engine/jinja/filters.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/text_operations.h"

namespace withy::jinja {
namespace {

// `value` is a string.
std::string Digits(const Value& value) {
  std::string text = Stripped(value.text(), nullptr, Side::kBoth).bytes();
  std::erase(text, '_');
  return text;
}

absl::StatusOr<Value> ToInt(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "default");
  const Value otherwise = given == nullptr ? Value::Int(0) : *given;
  if (input.is_integer()) return Value::Int(input.integer());
  if (input.is_undefined()) return UndefinedError(input);
  double number = 0;
  if (input.is_string()) {
    WITHY_RETURN_IF_ERROR(in.SpendBytes(input.weight()));
    int64_t whole = 0;
    const std::string digits = Digits(input);
    if (absl::SimpleAtoi(digits, &whole)) return Value::Int(whole);
    if (!absl::SimpleAtod(digits, &number)) return otherwise;
  } else if (input.is_number()) {
    number = input.number();
  } else {
    return otherwise;
  }
  if (!(std::abs(number) < 9e18)) return otherwise;
  return Value::Int(static_cast<int64_t>(number));
}

absl::StatusOr<Value> ToFloat(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (input.is_number()) return Value::Float(input.number());
  if (input.is_undefined()) return UndefinedError(input);
  double number = 0;
  WITHY_RETURN_IF_ERROR(in.SpendBytes(input.weight()));
  if (input.is_string() && absl::SimpleAtod(Digits(input), &number)) return Value::Float(number);
  const Value* given = arguments.Find(0, "default");
  return given == nullptr ? Value::Float(0) : *given;
}

absl::StatusOr<Value> Abs(Interpreter&, const Value& input, const Arguments&) {
  if (input.kind() == Kind::kFloat) return Value::Float(std::abs(input.number()));
  if (!input.is_integer()) return WrongInput("abs", input);
  return input.integer() < 0 ? Negated(input) : absl::StatusOr<Value>(Value::Int(input.integer()));
}

absl::StatusOr<Value> Round(Interpreter&, const Value& input, const Arguments& arguments) {
  if (!input.is_number()) return WrongInput("round", input);
  const Value* precision = arguments.Find(0, "precision");
  const int64_t digits = precision != nullptr && precision->is_integer()
                             ? std::clamp<int64_t>(precision->integer(), -15, 15)
                             : 0;
  const Value* method = arguments.Find(1, "method");
  const std::string how = method == nullptr ? "common" : Str(*method).bytes();
  if (how == "common" && input.is_integer() && digits >= 0) return Value::Int(input.integer());
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = input.number() * scale;
  const double whole = how == "ceil"    ? std::ceil(scaled)
                       : how == "floor" ? std::floor(scaled)
                                        : std::nearbyint(scaled);
  return Value::Float(whole / scale);
}

}  // namespace

const Filters& NumberFilters() {
  static const auto* filters = new Filters{
      {"abs", Abs},
      {"float", ToFloat},
      {"int", ToInt},
      {"round", Round},
  };
  return *filters;
}

}  // namespace withy::jinja
