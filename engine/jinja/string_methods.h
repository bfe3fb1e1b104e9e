// Methods of strings. Neighbour: methods.h has those of other values and finds a value's.
#pragma once

#include <map>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/jinja/interpreter.h"

namespace withy::jinja {

using Method = absl::StatusOr<Value> (*)(Interpreter&, const Value& self, const Arguments&);
using Methods = std::map<std::string_view, Method>;
const Methods& StringMethods();

// INVALID_ARGUMENT. `what`: the method.
absl::Status WrongArguments(std::string_view what);

}  // namespace withy::jinja
