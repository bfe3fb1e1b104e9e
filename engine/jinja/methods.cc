#include "engine/jinja/methods.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/string_methods.h"

namespace withy::jinja {
namespace {

absl::StatusOr<Value> Items(Interpreter& in, const Value& self, const Arguments&) {
  WITHY_RETURN_IF_ERROR(in.Spend(self.dict().size()));
  return Value::List(DictItems(self.dict()));
}

absl::StatusOr<Value> Keys(Interpreter& in, const Value& self, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(std::vector<Value> keys, in.Iterate(self));
  return Value::List(std::move(keys));
}

absl::StatusOr<Value> Values(Interpreter& in, const Value& self, const Arguments&) {
  WITHY_RETURN_IF_ERROR(in.Spend(self.dict().size()));
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict().entries()) values.push_back(value);
  return Value::List(std::move(values));
}

absl::StatusOr<Value> Get(Interpreter& in, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return WrongArguments("get()");
  if (const Value* value = self.dict().Find(arguments.positional[0])) return *value;
  return arguments.positional.size() > 1 ? arguments.positional[1] : Value::None();
}

absl::StatusOr<Value> Copy(Interpreter&, const Value& self, const Arguments&) { return self; }

absl::StatusOr<Value> CountItem(Interpreter& in, const Value& self, const Arguments& arguments) {
  if (arguments.positional.size() != 1) return WrongArguments("count()");
  WITHY_RETURN_IF_ERROR(in.SpendBytes(self.weight()));
  return Value::Int(std::count_if(self.items().begin(), self.items().end(), [&](const Value& item) {
    return Equal(item, arguments.positional[0]);
  }));
}

absl::StatusOr<Value> IndexOf(Interpreter& in, const Value& self, const Arguments& arguments) {
  if (arguments.positional.size() != 1) return WrongArguments("index()");
  WITHY_RETURN_IF_ERROR(in.SpendBytes(self.weight()));
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (Equal(self.items()[i], arguments.positional[0])) return Value::Int(static_cast<int64_t>(i));
  }
  return absl::InvalidArgumentError("index(): the value is not in the list");
}

absl::StatusOr<Value> Refused(Interpreter&, const Value& self, const Arguments&) {
  return absl::InvalidArgumentError(absl::StrCat(
      "a ", ToAbsl(TypeName(self)), " cannot be changed; make a new one, or use a namespace"));
}

absl::StatusOr<Value> Cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return WrongArguments("loop.cycle()");
  return arguments.positional[self.loop().index % arguments.positional.size()];
}

const Methods& DictMethods() {
  static const auto* methods = new Methods{
      {"items", Items},   {"keys", Keys},          {"values", Values}, {"get", Get},
      {"copy", Copy},     {"update", Refused},     {"pop", Refused},   {"popitem", Refused},
      {"clear", Refused}, {"setdefault", Refused},
  };
  return *methods;
}

const Methods& ListMethods() {
  static const auto* methods = new Methods{
      {"count", CountItem}, {"index", IndexOf},  {"copy", Copy},       {"append", Refused},
      {"extend", Refused},  {"insert", Refused}, {"remove", Refused},  {"pop", Refused},
      {"clear", Refused},   {"sort", Refused},   {"reverse", Refused},
  };
  return *methods;
}

const Methods& MethodsOf(const Value& value) {
  static const auto* of_loops = new Methods{{"cycle", Cycle}};
  static const auto* of_tuples = new Methods{{"count", CountItem}, {"index", IndexOf}};
  static const auto* none = new Methods;
  switch (value.kind()) {
    case Kind::kString:
      return StringMethods();
    case Kind::kDict:
      return DictMethods();
    case Kind::kList:
      return ListMethods();
    case Kind::kTuple:
      return *of_tuples;
    case Kind::kLoop:
      return *of_loops;
    default:
      return *none;
  }
}

}  // namespace

bool HasMethod(const Value& value, std::string_view name) {
  return MethodsOf(value).contains(name);
}

absl::StatusOr<Value> CallMethod(Interpreter& in, const Value& receiver, std::string_view name,
                                 const Arguments& arguments) {
  const Methods& methods = MethodsOf(receiver);
  const auto found = methods.find(name);
  if (found == methods.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(TypeName(receiver)), "' has no method '", ToAbsl(name), "'"));
  }
  WITHY_RETURN_IF_ERROR(in.SpendBytes(receiver.is_string() ? receiver.weight() : size_t{0}));
  return found->second(in, receiver, arguments);
}

std::vector<Value> DictItems(const Dict& dict) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) items.push_back(Value::Tuple({key, value}));
  return items;
}

}  // namespace withy::jinja
