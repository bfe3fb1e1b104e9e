// The filters of Jinja that published templates use.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/characters.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/json.h"
#include "engine/jinja/methods.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/parser.h"

namespace withy::jinja {
namespace {

absl::Status WrongInput(std::string_view filter, const Value& input) {
  if (input.is_undefined()) return UndefinedError(input);
  return absl::InvalidArgumentError(absl::StrCat(
      "the filter '", ToAbsl(filter), "' does not take a '", ToAbsl(TypeName(input)), "'"));
}

bool Flag(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && Truth(*value);
}

// Keyword arguments only, as map(attribute=…).
const Value* Named(const Arguments& arguments, std::string_view name) {
  return arguments.Find(SIZE_MAX, name);
}

// a.b.0 of `value`; what is missing becomes `otherwise`, if given.
absl::StatusOr<Value> Path(Interpreter& in, const Value& value, const Value& path,
                           const Value* otherwise = nullptr) {
  if (path.is_integer()) return in.Item(value, path);
  if (!path.is_string()) return absl::InvalidArgumentError("an attribute is named by a string");
  Value found = value;
  const std::string& names = path.text().bytes();
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, end - at);
    int64_t index = 0;
    const bool number = !name.empty() &&
                        name.find_first_not_of("0123456789") == std::string::npos &&
                        absl::SimpleAtoi(name, &index);
    WITHY_ASSIGN_OR_RETURN(found, in.Item(found, number ? Value::Int(index) : Value::String(name)));
    if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
    at = end + 1;
  }
  return found;
}

// For comparisons that ignore case.
Value CaseKey(const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return Value::String(MapCharacters(value.text(), Lower));
}

struct KeyedValue {
  Value key;
  Value value;
};

absl::Status SortByKey(std::vector<KeyedValue>* values, bool reverse) {
  absl::Status status;
  std::stable_sort(values->begin(), values->end(), [&](const KeyedValue& a, const KeyedValue& b) {
    const absl::StatusOr<int> order = Order(a.key, b.key);
    if (!order.ok()) status = order.status();
    return order.ok() && (reverse ? *order > 0 : *order < 0);
  });
  return status;
}

// --- Text

absl::StatusOr<Value> Trim(Interpreter&, const Value& input, const Arguments& arguments) {
  const Value* characters = arguments.Find(0, "chars");
  const bool given = characters != nullptr && characters->is_string();
  const Text text = Str(input);
  return Value::String(Stripped(text, given ? &characters->text() : nullptr, Side::kBoth));
}

absl::StatusOr<Value> ToUpper(Interpreter&, const Value& input, const Arguments&) {
  return Value::String(MapCharacters(Str(input), Upper));
}

absl::StatusOr<Value> ToLower(Interpreter&, const Value& input, const Arguments&) {
  return Value::String(MapCharacters(Str(input), Lower));
}

absl::StatusOr<Value> Capitalize(Interpreter&, const Value& input, const Arguments&) {
  return Value::String(TitleCased(Str(input), true));
}

// Unlike str.title(), words begin behind white space, - and opening brackets only.
absl::StatusOr<Value> ToTitle(Interpreter&, const Value& input, const Arguments&) {
  const Text text = Str(input);
  const std::string& bytes = text.bytes();
  Text out;
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = CharAt(bytes, at, &code);
    const bool separates =
        IsSpace(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    out.AppendInPlaceOf(text, at,
                        separates ? bytes.substr(at, length)
                        : inside  ? Lower(code)
                                  : Upper(code));
    inside = !separates;
    at += length;
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Replace(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* from = arguments.Find(0, "old");
  const Value* to = arguments.Find(1, "new");
  if (from == nullptr || to == nullptr) {
    return absl::InvalidArgumentError("replace needs what to replace, and by what");
  }
  const Value* count = arguments.Find(2, "count");
  const int64_t limit = count != nullptr && count->is_integer() ? count->integer() : -1;
  return ReplaceWithin(in, Str(input), Str(*from), Str(*to), limit);
}

absl::StatusOr<Value> Indent(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (!input.is_string()) return WrongInput("indent", input);
  const Value* width = arguments.Find(0, "width");
  Text spaces(std::string(4, ' '));
  if (width != nullptr && width->is_string()) {
    spaces = width->text();
  } else if (width != nullptr && width->is_integer()) {
    spaces =
        Text(std::string(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1000)), ' '));
  }
  const bool blank = Flag(arguments, 2, "blank");
  Text text = Str(input);
  text.Append("\n");  // so that a last line break is kept
  WITHY_ASSIGN_OR_RETURN(const Value lines,
                         CallMethod(in, Value::String(std::move(text)), "splitlines", {}));
  Text out;
  if (Flag(arguments, 1, "first")) out.Append(spaces);
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const Text& line = lines.items()[i].text();
    if (i > 0) out.Append("\n");
    if (i > 0 && (blank || !line.empty())) out.Append(spaces);
    out.Append(line);
    WITHY_RETURN_IF_ERROR(in.SpendBytes(line.size() + spaces.size()));
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Escape(Interpreter& in, const Value& input, const Arguments&) {
  const Text text = Str(input);
  Text out;
  WITHY_RETURN_IF_ERROR(in.Spend(text.size()));
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t known = std::string_view("&<>'\"").find(text.bytes()[at]);
    constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (known == std::string_view::npos) {
      out.Append(text, at, at + 1);
    } else {
      out.AppendInPlaceOf(text, at, kEscapes[known]);
    }
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> ToString(Interpreter&, const Value& input, const Arguments&) {
  return Value::String(Str(input));
}

absl::StatusOr<Value> FormatFilter(Interpreter& in, const Value& input,
                                   const Arguments& arguments) {
  return Arithmetic(Operator::kModulo, Value::String(Str(input)),
                    Value::Tuple(arguments.positional), in.options().max_bytes);
}

absl::StatusOr<Value> Join(Interpreter& in, const Value& input, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(input));
  const Value* separator = arguments.Find(0, "d");
  const Text between = separator == nullptr ? Text() : Str(*separator);
  const Value* attribute = arguments.Find(1, "attribute");
  Text text;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->is_none()) {
      WITHY_ASSIGN_OR_RETURN(item, Path(in, item, *attribute));
    }
    if (i > 0) text.Append(between);
    text.Append(Str(item));
    WITHY_RETURN_IF_ERROR(in.SpendBytes(item.weight() + between.size()));
    if (text.size() > in.options().max_bytes) break;  // refused by its size
  }
  return Value::String(std::move(text));
}

absl::StatusOr<Value> ToJsonFilter(Interpreter& in, const Value& input,
                                   const Arguments& arguments) {
  JsonStyle style;
  // transformers puts ensure_ascii in front of indent.
  const Value* indent = Named(arguments, "indent");
  if (indent == nullptr && arguments.positional.size() > 1) indent = &arguments.positional[1];
  if (indent != nullptr && indent->is_integer()) {
    style.indent =
        Text(std::string(static_cast<size_t>(std::clamp<int64_t>(indent->integer(), 0, 100)), ' '));
  } else if (indent != nullptr && indent->is_string()) {
    style.indent = indent->text();
  }
  if (const Value* separators = Named(arguments, "separators");
      separators != nullptr && separators->is_sequence() && separators->items().size() == 2) {
    style.item_separator = Str(separators->items()[0]);
    style.key_separator = Str(separators->items()[1]);
  }
  const Value* ascii = Named(arguments, "ensure_ascii");
  if (ascii == nullptr && !arguments.positional.empty()) ascii = &arguments.positional[0];
  if (ascii != nullptr && Truth(*ascii)) {
    return absl::UnimplementedError("tojson with ensure_ascii is not supported");
  }
  const Value* sorted = Named(arguments, "sort_keys");
  style.sort_keys = sorted != nullptr && Truth(*sorted);
  const size_t per_level = style.indent ? style.indent->size() : 0;
  WITHY_RETURN_IF_ERROR(
      in.SpendBytes(input.weight() * (1 + per_level * static_cast<size_t>(input.depth()) / 8)));
  WITHY_ASSIGN_OR_RETURN(Text text, ToJson(input, style));
  return Value::String(std::move(text));
}

// --- Values

absl::StatusOr<Value> Default(Interpreter&, const Value& input, const Arguments& arguments) {
  const bool missing = input.is_undefined() || (Flag(arguments, 1, "boolean") && !Truth(input));
  if (!missing) return input;
  const Value* otherwise = arguments.Find(0, "default_value");
  return otherwise == nullptr ? Value::String("") : *otherwise;
}

absl::StatusOr<Value> Length(Interpreter& in, const Value& input, const Arguments&) {
  switch (input.kind()) {
    case Kind::kUndefined:
      return Value::Int(0);
    case Kind::kString:
      return Value::Int(static_cast<int64_t>(CountChars(input.text().bytes())));
    case Kind::kList:
    case Kind::kTuple:
      return Value::Int(static_cast<int64_t>(input.items().size()));
    case Kind::kDict:
      return Value::Int(static_cast<int64_t>(input.dict().size()));
    default:
      return WrongInput("length", input);
  }
}

template <bool from_end>
absl::StatusOr<Value> EndItem(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(input));
  if (items.empty()) return Value::Undefined("the sequence is empty");
  return from_end ? items.back() : items.front();
}

absl::StatusOr<Value> ToList(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(std::vector<Value> items, in.Iterate(input));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> Reverse(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(std::vector<Value> items, in.Iterate(input));
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) return Value::List(std::move(items));
  Text text;
  for (const Value& item : items) text.Append(item.text());
  return Value::String(std::move(text));
}

absl::StatusOr<Value> ItemsOf(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is_undefined()) return Value::List({});
  if (!input.is_dict()) return WrongInput("items", input);
  WITHY_RETURN_IF_ERROR(in.Spend(input.dict().size()));
  return Value::List(DictItems(input.dict()));
}

absl::StatusOr<Value> DictSort(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (!input.is_dict()) return WrongInput("dictsort", input);
  const bool case_sensitive = Flag(arguments, 0, "case_sensitive");
  const Value* by = arguments.Find(1, "by");
  const size_t place = by != nullptr && by->is_string() && by->text().bytes() == "value" ? 1 : 0;
  std::vector<KeyedValue> keyed;
  for (Value& item : DictItems(input.dict())) {
    keyed.push_back({CaseKey(item.items()[place], case_sensitive), item});
  }
  WITHY_RETURN_IF_ERROR(in.Spend(4 * keyed.size()));
  WITHY_RETURN_IF_ERROR(SortByKey(&keyed, Flag(arguments, 2, "reverse")));
  std::vector<Value> items;
  for (KeyedValue& item : keyed) items.push_back(std::move(item.value));
  return Value::List(std::move(items));
}

// The items of `input`, each with the key that it is sorted or compared by.
absl::StatusOr<std::vector<KeyedValue>> Keyed(Interpreter& in, const Value& input,
                                              const Value* attribute, bool case_sensitive) {
  WITHY_ASSIGN_OR_RETURN(std::vector<Value> items, in.Iterate(input));
  std::vector<KeyedValue> keyed;
  for (Value& item : items) {
    Value key = item;
    if (attribute != nullptr && !attribute->is_none()) {
      WITHY_ASSIGN_OR_RETURN(key, Path(in, item, *attribute));
    }
    keyed.push_back({CaseKey(key, case_sensitive), std::move(item)});
  }
  WITHY_RETURN_IF_ERROR(in.Spend(4 * keyed.size()));
  return keyed;
}

absl::StatusOr<Value> Sort(Interpreter& in, const Value& input, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(
      std::vector<KeyedValue> keyed,
      Keyed(in, input, arguments.Find(2, "attribute"), Flag(arguments, 1, "case_sensitive")));
  WITHY_RETURN_IF_ERROR(SortByKey(&keyed, Flag(arguments, 0, "reverse")));
  std::vector<Value> items;
  for (KeyedValue& item : keyed) items.push_back(std::move(item.value));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> Unique(Interpreter& in, const Value& input, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(
      std::vector<KeyedValue> keyed,
      Keyed(in, input, arguments.Find(1, "attribute"), Flag(arguments, 0, "case_sensitive")));
  Dict seen;
  std::vector<Value> items;
  for (KeyedValue& item : keyed) {
    if (seen.Find(item.key) != nullptr) continue;
    WITHY_RETURN_IF_ERROR(seen.Set(item.key, Value::None()));
    items.push_back(std::move(item.value));
  }
  return Value::List(std::move(items));
}

template <bool largest>
absl::StatusOr<Value> Extreme(Interpreter& in, const Value& input, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(
      const std::vector<KeyedValue> keyed,
      Keyed(in, input, arguments.Find(1, "attribute"), Flag(arguments, 0, "case_sensitive")));
  if (keyed.empty()) return Value::Undefined("the sequence is empty");
  size_t best = 0;
  for (size_t i = 1; i < keyed.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(const int order, Order(keyed[i].key, keyed[best].key));
    if (largest ? order > 0 : order < 0) best = i;
  }
  return keyed[best].value;
}

absl::StatusOr<Value> Sum(Interpreter& in, const Value& input, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(input));
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* start = arguments.Find(1, "start");
  Value sum = start == nullptr ? Value::Int(0) : *start;
  for (const Value& item : items) {
    Value value = item;
    if (attribute != nullptr && !attribute->is_none()) {
      WITHY_ASSIGN_OR_RETURN(value, Path(in, item, *attribute));
    }
    WITHY_ASSIGN_OR_RETURN(sum, Arithmetic(Operator::kAdd, sum, value, in.options().max_bytes));
    WITHY_RETURN_IF_ERROR(in.SpendBytes(sum.weight()));
  }
  return sum;
}

absl::StatusOr<Value> Batch(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* size = arguments.Find(0, "linecount");
  if (size == nullptr || !size->is_integer() || size->integer() < 1) {
    return absl::InvalidArgumentError("batch needs a size of at least 1");
  }
  const Value* fill = arguments.Find(1, "fill_with");
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(input));
  std::vector<Value> batches;
  std::vector<Value> batch;
  const auto wanted = static_cast<size_t>(size->integer());
  for (const Value& item : items) {
    batch.push_back(item);
    if (batch.size() == wanted) batches.push_back(Value::List(std::exchange(batch, {})));
  }
  if (!batch.empty()) {
    if (fill != nullptr && !fill->is_none()) {
      WITHY_RETURN_IF_ERROR(in.Spend(wanted));
      batch.resize(wanted, *fill);
    }
    batches.push_back(Value::List(std::move(batch)));
  }
  return Value::List(std::move(batches));
}

absl::StatusOr<Value> Attr(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* name = arguments.Find(0, "name");
  if (name == nullptr) return absl::InvalidArgumentError("attr needs a name");
  if (input.is_dict()) return Value::Undefined("a dict's keys are no attributes");
  return in.Attribute(input, Str(*name).bytes());
}

// --- Numbers

std::string Digits(const Value& value) {
  std::string text = Stripped(Str(value), nullptr, Side::kBoth).bytes();
  std::erase(text, '_');
  return text;
}

absl::StatusOr<Value> ToInt(Interpreter&, const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "default");
  const Value otherwise = given == nullptr ? Value::Int(0) : *given;
  if (input.is_integer()) return Value::Int(input.integer());
  if (input.is_undefined()) return UndefinedError(input);
  double number = 0;
  if (input.is_string()) {
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

absl::StatusOr<Value> ToFloat(Interpreter&, const Value& input, const Arguments& arguments) {
  if (input.is_number()) return Value::Float(input.number());
  if (input.is_undefined()) return UndefinedError(input);
  double number = 0;
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

// --- Choosing

absl::StatusOr<Value> Map(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (!Truth(input)) return Value::List({});  // none, for example
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(input));
  const Value* attribute = Named(arguments, "attribute");
  FilterFunction filter = nullptr;
  Arguments rest;
  if (attribute == nullptr) {
    const Value* name = arguments.Find(0, "");
    if (name == nullptr) return absl::InvalidArgumentError("map needs a filter or attribute=");
    filter = FindFilter(Str(*name).bytes());
    if (filter == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("the filter '", Str(*name).bytes().substr(0, 80), "' is not supported"));
    }
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  std::vector<Value> mapped;
  for (const Value& item : items) {
    WITHY_RETURN_IF_ERROR(in.SpendBytes(item.weight()));
    WITHY_ASSIGN_OR_RETURN(
        Value value, attribute != nullptr ? Path(in, item, *attribute, Named(arguments, "default"))
                                          : filter(in, item, rest));
    mapped.push_back(std::move(value));
  }
  return Value::List(std::move(mapped));
}

// The items whose value, or whose attribute's, passes a test; those that do not if `rejects`.
template <bool by_attribute, bool rejects>
absl::StatusOr<Value> Choose(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (!Truth(input)) return Value::List({});
  WITHY_ASSIGN_OR_RETURN(std::vector<Value> items, in.Iterate(input));
  constexpr size_t kFirst = by_attribute ? 1 : 0;
  if (arguments.positional.size() < kFirst) {
    return absl::InvalidArgumentError("selectattr and rejectattr need an attribute");
  }
  TestFunction test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > kFirst) {
    const std::string name = Str(arguments.positional[kFirst]).bytes();
    test = FindTest(name);
    if (test == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("the test '", name.substr(0, 80), "' is not supported"));
    }
    rest.positional.assign(arguments.positional.begin() + kFirst + 1, arguments.positional.end());
  }
  std::vector<Value> chosen;
  for (Value& item : items) {
    Value value = item;
    if (by_attribute) {
      WITHY_ASSIGN_OR_RETURN(value, Path(in, item, arguments.positional[0]));
    }
    WITHY_RETURN_IF_ERROR(in.SpendBytes(value.weight()));
    bool passes = Truth(value);
    if (test != nullptr) {
      WITHY_ASSIGN_OR_RETURN(passes, test(in, value, rest));
    }
    if (passes != rejects) chosen.push_back(std::move(item));
  }
  return Value::List(std::move(chosen));
}

}  // namespace

FilterFunction FindFilter(std::string_view name) {
  static const auto* filters = new std::map<std::string_view, FilterFunction>{
      {"abs", Abs},
      {"attr", Attr},
      {"batch", Batch},
      {"capitalize", Capitalize},
      {"count", Length},
      {"d", Default},
      {"default", Default},
      {"dictsort", DictSort},
      {"e", Escape},
      {"escape", Escape},
      {"first", EndItem<false>},
      {"float", ToFloat},
      {"format", FormatFilter},
      {"indent", Indent},
      {"int", ToInt},
      {"items", ItemsOf},
      {"join", Join},
      {"last", EndItem<true>},
      {"length", Length},
      {"list", ToList},
      {"lower", ToLower},
      {"map", Map},
      {"max", Extreme<true>},
      {"min", Extreme<false>},
      {"reject", Choose<false, true>},
      {"rejectattr", Choose<true, true>},
      {"replace", Replace},
      {"reverse", Reverse},
      {"round", Round},
      {"safe", ToString},
      {"select", Choose<false, false>},
      {"selectattr", Choose<true, false>},
      {"sort", Sort},
      {"string", ToString},
      {"sum", Sum},
      {"title", ToTitle},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"unique", Unique},
      {"upper", ToUpper},
  };
  const auto found = filters->find(name);
  return found == filters->end() ? nullptr : found->second;
}

}  // namespace withy::jinja
