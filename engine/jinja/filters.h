// What the files of filters share. FindFilter (parser.h) looks into all of their tables. Neighbour:
// interpreter.h.
#pragma once

#include <map>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/jinja/interpreter.h"

namespace withy::jinja {

using Filters = std::map<std::string_view, FilterFunction>;
const Filters& TextFilters();      // text_filters.cc
const Filters& NumberFilters();    // number_filters.cc
const Filters& SequenceFilters();  // sequence_filters.cc

// INVALID_ARGUMENT: the filter does not take this value.
absl::Status WrongInput(std::string_view filter, const Value& input);

// Whether the argument is given and true.
bool Flag(const Arguments& arguments, size_t index, std::string_view name);

// A keyword argument, as in map(attribute=…); null if it is not given.
const Value* Named(const Arguments& arguments, std::string_view name);

// a.b.0 of `value`; what is missing becomes `otherwise`, if given. Errors: INVALID_ARGUMENT.
absl::StatusOr<Value> Path(Interpreter& in, const Value& value, const Value& path,
                           const Value* otherwise = nullptr);

}  // namespace withy::jinja
