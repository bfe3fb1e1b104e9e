// Reads a JSON Schema: what of it is enforced while an answer is made is left in, what cannot be is
// an error that names the keyword. Pure. Neighbours: format_check.h asks it; compiler.h compiles
// what it returns.
//
// Enforced: type, enum, const, anyOf, oneOf of alternatives that exclude each other, allOf of one,
// $ref within the document (recursion, too), $defs; properties, required, additionalProperties,
// minProperties, maxProperties; items, prefixItems, minItems, maxItems; pattern, format, minLength,
// maxLength; minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf of integers.
//
// Narrower than JSON Schema, so that every answer is valid: an object that describes properties
// has no others, in the schema's order; a pattern matches the whole string.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace withy::grammar {

// The schema with every restriction written out. `field` is named in errors. Errors:
// INVALID_ARGUMENT, with the place as a JSON pointer.
absl::StatusOr<std::string> PrepareSchema(std::string_view field, std::string_view schema);

}  // namespace withy::grammar
