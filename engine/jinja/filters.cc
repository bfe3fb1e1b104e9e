// The filters of Jinja that published templates use: those of any value, and where all are found.
#include "engine/jinja/filters.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/parser.h"

namespace withy::jinja {
namespace {

absl::StatusOr<Value> Default(Interpreter&, const Value& input, const Arguments& arguments) {
  const bool missing = input.is_undefined() || (Flag(arguments, 1, "boolean") && !Truth(input));
  if (!missing) return input;
  const Value* otherwise = arguments.Find(0, "default_value");
  return otherwise == nullptr ? Value::String("") : *otherwise;
}

absl::StatusOr<Value> Attr(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* name = arguments.Find(0, "name");
  if (name == nullptr) return absl::InvalidArgumentError("attr needs a name");
  if (input.is_dict()) return Value::Undefined("a dict's keys are no attributes");
  return in.Attribute(input, Str(*name).bytes());
}

const Filters& AnyFilters() {
  static const auto* filters = new Filters{
      {"attr", Attr},
      {"d", Default},
      {"default", Default},
  };
  return *filters;
}

}  // namespace

absl::Status WrongInput(std::string_view filter, const Value& input) {
  if (input.is_undefined()) return UndefinedError(input);
  return absl::InvalidArgumentError(absl::StrCat(
      "the filter '", ToAbsl(filter), "' does not take a '", ToAbsl(TypeName(input)), "'"));
}

bool Flag(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && Truth(*value);
}

const Value* Named(const Arguments& arguments, std::string_view name) {
  return arguments.Find(SIZE_MAX, name);
}

absl::StatusOr<Value> Path(Interpreter& in, const Value& value, const Value& path,
                           const Value* otherwise) {
  if (path.is_integer()) return in.Item(value, path);
  if (!path.is_string()) return absl::InvalidArgumentError("an attribute is named by a string");
  WITHY_RETURN_IF_ERROR(in.SpendBytes(path.weight()));
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

FilterFunction FindFilter(std::string_view name) {
  for (const Filters* filters :
       {&AnyFilters(), &TextFilters(), &NumberFilters(), &SequenceFilters()}) {
    const auto found = filters->find(name);
    if (found != filters->end()) return found->second;
  }
  return nullptr;
}

}  // namespace withy::jinja
