// What Python's operators do with values. Pure. Errors are INVALID_ARGUMENT naming the types, or
// the undefined name.
#pragma once

#include "absl/status/statusor.h"
#include "engine/jinja/ast.h"
#include "engine/jinja/value.h"

namespace withy::jinja {

// `undefined` was used in a way that needs a value.
absl::Status UndefinedError(const Value& undefined);

// == ; never an error.
bool Equal(const Value& a, const Value& b);
// Negative, 0 or positive, as a < b, a == b, a > b.
absl::StatusOr<int> Order(const Value& a, const Value& b);
absl::StatusOr<bool> Contains(const Value& container, const Value& item);
// Any operator that compares.
absl::StatusOr<bool> Compare(Operator op, const Value& a, const Value& b);
// + - * / // % **. A result of more than `max_bytes` is refused before it is made.
absl::StatusOr<Value> Arithmetic(Operator op, const Value& a, const Value& b, size_t max_bytes);
absl::StatusOr<Value> Negated(const Value& value);

}  // namespace withy::jinja
