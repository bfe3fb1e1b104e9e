// Filters of sequences and dicts: count, order and choose what is in them.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/characters.h"
#include "engine/jinja/filters.h"
#include "engine/jinja/methods.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/parser.h"
#include "engine/jinja/text_operations.h"

namespace withy::jinja {
namespace {

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

absl::StatusOr<Value> Length(Interpreter& in, const Value& input, const Arguments&) {
  switch (input.kind()) {
    case Kind::kUndefined:
      return Value::Int(0);
    case Kind::kString:
      WITHY_RETURN_IF_ERROR(in.SpendBytes(input.text().size()));
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
  WITHY_RETURN_IF_ERROR(in.SpendBytes(input.weight()));
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
  WITHY_RETURN_IF_ERROR(in.SpendBytes(input.weight()));
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
    WITHY_RETURN_IF_ERROR(in.SpendOn(rest));
    WITHY_RETURN_IF_ERROR(in.Spend(1));
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
    WITHY_RETURN_IF_ERROR(in.SpendOn(rest));
    WITHY_RETURN_IF_ERROR(in.Spend(1));
    bool passes = Truth(value);
    if (test != nullptr) {
      WITHY_ASSIGN_OR_RETURN(passes, test(in, value, rest));
    }
    if (passes != rejects) chosen.push_back(std::move(item));
  }
  return Value::List(std::move(chosen));
}

}  // namespace

const Filters& SequenceFilters() {
  static const auto* filters = new Filters{
      {"batch", Batch},
      {"count", Length},
      {"dictsort", DictSort},
      {"first", EndItem<false>},
      {"items", ItemsOf},
      {"last", EndItem<true>},
      {"length", Length},
      {"list", ToList},
      {"map", Map},
      {"max", Extreme<true>},
      {"min", Extreme<false>},
      {"reject", Choose<false, true>},
      {"rejectattr", Choose<true, true>},
      {"reverse", Reverse},
      {"select", Choose<false, false>},
      {"selectattr", Choose<true, false>},
      {"sort", Sort},
      {"sum", Sum},
      {"unique", Unique},
  };
  return *filters;
}

}  // namespace withy::jinja
