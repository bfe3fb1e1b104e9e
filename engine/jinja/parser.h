// Parses a template's text into a program. Neighbours: lexer.h, ast.h.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/jinja/ast.h"

namespace withy::jinja {

// `source` is valid UTF-8. Errors: INVALID_ARGUMENT for what is no template, UNIMPLEMENTED for
// parts of the language that are not executed (include, extends, recursive loops, unknown filters,
// …); both name line and construct.
absl::StatusOr<Block> Parse(std::string_view source);

// Null if there is none with this name.
FilterFunction FindFilter(std::string_view name);
TestFunction FindTest(std::string_view name);

}  // namespace withy::jinja
