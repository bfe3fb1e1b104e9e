// Parses expressions, by recursive descent in Jinja's order of precedence: conditional, or, and,
// not, comparison, + -, ~, * / // %, **, signs, postfix, filters and tests. Neighbours:
// token_cursor.h; parser.cc parses the statements around them.
#pragma once

#include "absl/status/statusor.h"
#include "engine/jinja/ast.h"
#include "engine/jinja/token_cursor.h"

namespace withy::jinja {

// Each begins at the present token and ends behind its last one. Errors: as Parse.

absl::StatusOr<ExpressionPtr> ParseExpression(TokenCursor& tokens);

// One expression, or a tuple of several without brackets. `conditional`: they may be conditional
// ones (a if b else c), which Jinja does not take behind {% if %} and the `in` of a loop.
absl::StatusOr<ExpressionPtr> ParseTuple(TokenCursor& tokens, bool conditional);

// The filters of a block's text, of which the first one need not have a | in front. The input of
// the innermost is null.
absl::StatusOr<ExpressionPtr> ParseBlockFilters(TokenCursor& tokens);

}  // namespace withy::jinja
