// Methods of strings, dicts and lists, as Python has them, as far as they change nothing.
// Neighbours: string_methods.h, expressions.cc.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/jinja/interpreter.h"

namespace withy::jinja {

bool HasMethod(const Value& value, std::string_view name);

// Errors: INVALID_ARGUMENT naming the method for wrong arguments, and for methods that would change
// a list or dict.
absl::StatusOr<Value> CallMethod(Interpreter& in, const Value& receiver, std::string_view name,
                                 const Arguments& arguments);

// Each entry as a tuple of key and value.
std::vector<Value> DictItems(const Dict& dict);

}  // namespace withy::jinja
