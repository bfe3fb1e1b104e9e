#include "engine/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/jinja/characters.h"

namespace withy::jinja {
namespace {

std::string OperatorName(Operator op) {
  constexpr const char* kNames[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kNames[static_cast<size_t>(op)];
}

absl::Status TypeError(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(op), " does not take '", ToAbsl(TypeName(a)), "' and '", ToAbsl(TypeName(b)), "'"));
}

absl::Status TooLargeNumber() {
  return absl::InvalidArgumentError("an integer has more than 64 bits");
}

absl::StatusOr<Value> IntegerArithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return TooLargeNumber();
      return Value::Int(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) return TooLargeNumber();
      return Value::Int(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return TooLargeNumber();
      return Value::Int(result);
    case Operator::kDivide:
      if (b == 0) return absl::InvalidArgumentError("division by zero");
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == 0) return absl::InvalidArgumentError("division by zero");
      if (b == -1) {  // INT64_MIN / -1 has no result
        if (op == Operator::kModulo) return Value::Int(0);
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) return TooLargeNumber();
        return Value::Int(result);
      }
      const int64_t remainder = a % b;
      const bool down = remainder != 0 && (remainder < 0) != (b < 0);
      if (op == Operator::kModulo) return Value::Int(down ? remainder + b : remainder);
      return Value::Int(a / b - (down ? 1 : 0));
    }
    default: {  // **
      if (b < 0) {
        if (a == 0) return absl::InvalidArgumentError("0 to a negative power");
        return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      if (a == 0 || a == 1) return Value::Int(b == 0 ? 1 : a);
      if (a == -1) return Value::Int(b % 2 == 0 ? 1 : -1);
      result = 1;
      for (; b > 0; --b) {  // at most 63 rounds before it is too large
        if (__builtin_mul_overflow(result, a, &result)) return TooLargeNumber();
      }
      return Value::Int(result);
    }
  }
}

absl::StatusOr<Value> FloatArithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::Float(a + b);
    case Operator::kSubtract:
      return Value::Float(a - b);
    case Operator::kMultiply:
      return Value::Float(a * b);
    case Operator::kPower:
      return Value::Float(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (op == Operator::kDivide) return Value::Float(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == Operator::kModulo) return Value::Float(remainder);
  return Value::Float(std::round((a - remainder) / b));
}

absl::StatusOr<Value> Repeated(const Value& value, int64_t times, size_t max_bytes) {
  times = std::max<int64_t>(times, 0);
  if (value.weight() > max_bytes / static_cast<size_t>(std::max<int64_t>(times, 1))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a value repeated ", times, " times is larger than ", max_bytes, " bytes"));
  }
  if (value.is_string()) {
    Text text;
    for (int64_t i = 0; i < times; ++i) text.Append(value.text());
    return Value::String(std::move(text));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.kind() == Kind::kList ? Value::List(std::move(items))
                                     : Value::Tuple(std::move(items));
}

// One conversion of a format: %-05.2f.
struct Conversion {
  bool left = false;
  bool zeros = false;
  size_t width = 0;
  std::optional<size_t> precision;
  char kind = '\0';
};

constexpr size_t kMaxWidth = 1000;

// Reads the conversion behind the % at `*at` and moves `*at` behind it.
absl::StatusOr<Conversion> ReadConversion(const std::string& format, size_t* at) {
  Conversion read;
  size_t i = *at + 1;
  const auto number = [&] {
    size_t value = 0;
    for (; i < format.size() && format[i] >= '0' && format[i] <= '9'; ++i) {
      value = std::min(value * 10 + static_cast<size_t>(format[i] - '0'), kMaxWidth);
    }
    return value;
  };
  for (; i < format.size() && (format[i] == '-' || format[i] == '0'); ++i) {
    (format[i] == '-' ? read.left : read.zeros) = true;
  }
  read.width = number();
  if (i < format.size() && format[i] == '.') {
    ++i;
    read.precision = number();
  }
  read.kind = i < format.size() ? format[i] : '\0';
  if (std::string_view("sdirfxX%").find(read.kind) == std::string_view::npos) {
    return absl::UnimplementedError("a format has a conversion that is not s, d, i, r, f, x or %");
  }
  *at = i + 1;
  return read;
}

absl::StatusOr<Text> ConvertedBy(const Conversion& conversion, const Value& value) {
  const bool number = conversion.kind != 's' && conversion.kind != 'r';
  if (number && !value.is_number()) return TypeError("%", value, value);
  Text text;
  if (!number) {
    text = conversion.kind == 's' ? Str(value) : Repr(value);
    if (conversion.precision) text = text.Sub(0, ByteOfChar(text.bytes(), *conversion.precision));
  } else if (conversion.kind == 'f') {
    text = Text(absl::StrFormat(
        "%.*f", static_cast<int>(std::min<size_t>(conversion.precision.value_or(6), 50)),
        value.number()));
  } else {
    const bool hex = conversion.kind == 'x' || conversion.kind == 'X';
    if (!value.is_integer() && (hex || !(std::abs(value.number()) < 9e18))) {
      return TypeError("%", value, value);
    }
    const int64_t whole =
        value.is_integer() ? value.integer() : static_cast<int64_t>(value.number());
    if (hex && whole < 0) return absl::UnimplementedError("%x of a negative number");
    text = Text(!hex                     ? std::to_string(whole)
                : conversion.kind == 'x' ? absl::StrFormat("%x", whole)
                                         : absl::StrFormat("%X", whole));
  }
  const size_t chars = CountChars(text.bytes());
  if (chars >= conversion.width) return text;
  const bool zeros = conversion.zeros && number && !conversion.left;
  const std::string filler(conversion.width - chars, zeros ? '0' : ' ');
  const size_t sign = zeros && text.bytes().starts_with('-') ? 1 : 0;
  Text padded;
  padded.Append(text, 0, sign);
  if (!conversion.left) padded.Append(filler);
  padded.Append(text, sign, text.size());
  if (conversion.left) padded.Append(filler);
  return padded;
}

// "%s of %d" % values.
absl::StatusOr<Value> Formatted(const Text& format, const Value& values) {
  std::vector<Value> several;
  if (values.kind() == Kind::kTuple) {
    several = values.items();
  } else {
    several.push_back(values);
  }
  Text text;
  size_t used = 0;
  const std::string& bytes = format.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    text.Append(format, at, percent);
    at = percent;
    if (percent == bytes.size()) break;
    WITHY_ASSIGN_OR_RETURN(const Conversion conversion, ReadConversion(bytes, &at));
    if (conversion.kind == '%') {
      text.Append(format, percent, percent + 1);
      continue;
    }
    if (used == several.size()) {
      return absl::InvalidArgumentError("not enough arguments for the format");
    }
    WITHY_ASSIGN_OR_RETURN(const Text part, ConvertedBy(conversion, several[used++]));
    text.Append(part);
  }
  // Python takes lists and dicts for mappings, of which nothing needs to be used.
  if (used < several.size() && !values.is_dict() && values.kind() != Kind::kList) {
    return absl::InvalidArgumentError("too many arguments for the format");
  }
  return Value::String(std::move(text));
}

bool EqualItems(const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), Equal);
}

}  // namespace

absl::Status UndefinedError(const Value& undefined) {
  return absl::InvalidArgumentError(undefined.undefined_name());
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.text().bytes() == b.text().bytes();
    case Kind::kList:
    case Kind::kTuple:
      return EqualItems(a.items(), b.items());
    case Kind::kDict:
      return a.dict().size() == b.dict().size() &&
             std::all_of(a.dict().entries().begin(), a.dict().entries().end(),
                         [&](const Dict::Entry& entry) {
                           const Value* other = b.dict().Find(entry.first);
                           return other != nullptr && Equal(entry.second, *other);
                         });
    case Kind::kNamespace:
      return &a.space() == &b.space();
    case Kind::kLoop:
      return &a.loop() == &b.loop();
    case Kind::kCallable:
      return &a.callable() == &b.callable();
    default:
      return false;
  }
}

absl::StatusOr<int> Order(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  if (a.is_number() && b.is_number()) {
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  // UTF-8 sorts as its characters do.
  if (a.is_string() && b.is_string()) return a.text().bytes().compare(b.text().bytes());
  if (a.is_sequence() && a.kind() == b.kind()) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      if (!Equal(a.items()[i], b.items()[i])) return Order(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size() ? 1 : 0;
  }
  return TypeError("a comparison", a, b);
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) return TypeError("in", item, container);
      return FindBytes(container.text().bytes(), item.text().bytes()) != std::string::npos;
    case Kind::kList:
    case Kind::kTuple:
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const Value& other) { return Equal(item, other); });
    case Kind::kDict: {
      WITHY_RETURN_IF_ERROR(Dict().Set(item, Value()));  // whether it can be a key
      return container.dict().Find(item) != nullptr;
    }
    case Kind::kUndefined:
      return false;
    default:
      return TypeError("in", item, container);
  }
}

absl::StatusOr<bool> Compare(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return Equal(a, b);
    case Operator::kNotEqual:
      return !Equal(a, b);
    case Operator::kIn:
      return Contains(b, a);
    case Operator::kNotIn: {
      WITHY_ASSIGN_OR_RETURN(const bool contained, Contains(b, a));
      return !contained;
    }
    default:
      break;
  }
  if ((a.kind() == Kind::kFloat && std::isnan(a.number())) ||
      (b.kind() == Kind::kFloat && std::isnan(b.number()))) {
    return false;
  }
  WITHY_ASSIGN_OR_RETURN(const int order, Order(a, b));
  switch (op) {
    case Operator::kLess:
      return order < 0;
    case Operator::kLessEqual:
      return order <= 0;
    case Operator::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

absl::StatusOr<Value> Arithmetic(Operator op, const Value& a, const Value& b, size_t max_bytes) {
  if (a.is_integer() && b.is_integer()) return IntegerArithmetic(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return FloatArithmetic(op, a.number(), b.number());
  if (op == Operator::kAdd && a.is_string() && b.is_string()) {
    Text text = a.text();
    text.Append(b.text());
    return Value::String(std::move(text));
  }
  if (op == Operator::kAdd && a.is_sequence() && a.kind() == b.kind()) {
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.kind() == Kind::kList ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
  }
  if (op == Operator::kMultiply) {
    if ((a.is_string() || a.is_sequence()) && b.is_integer()) {
      return Repeated(a, b.integer(), max_bytes);
    }
    if ((b.is_string() || b.is_sequence()) && a.is_integer()) {
      return Repeated(b, a.integer(), max_bytes);
    }
  }
  if (op == Operator::kModulo && a.is_string()) return Formatted(a.text(), b);
  return TypeError(OperatorName(op), a, b);
}

absl::StatusOr<Value> Negated(const Value& value) {
  if (value.is_integer()) return IntegerArithmetic(Operator::kSubtract, 0, value.integer());
  if (value.is_number()) return Value::Float(-value.number());
  return TypeError("-", value, value);
}

}  // namespace withy::jinja
